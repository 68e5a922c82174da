"""Convolutions of any stride as matrix products by cuBLAS (im2col): the values that each pixel sees are written first.

Columns [G, pixels, in·K·K] have the order of the weights [G, out, in·K·K] in memory, so the weights need no copy but
the cast, and their gradient has the right order too. It is fast if there are few pixels and many weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torso.nets.kernels.gather import seen


@triton.jit(do_not_specialize=["pixels", "in_h", "in_w", "out_h", "out_w"])
def _columns_kernel(
    x, out, pixels, in_h, in_w, channels, out_h, out_w, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[pixel, c, tap] = x[pixel seen through tap, c]."""
    pixel = tl.program_id(0) * BP + tl.arange(0, BP)
    c, tap = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, WIDE)
    column, row, sample = pixel % out_w, pixel // out_w % out_h, pixel // (out_w * out_h)
    h, in_rows = seen(row[:, None], (tap // KERNEL)[None, :], in_h, STRIDE, PAD, False)
    w, in_columns = seen(column[:, None], (tap % KERNEL)[None, :], in_w, STRIDE, PAD, False)
    real = (pixel < pixels)[:, None] & (tap < KERNEL * KERNEL)[None, :]
    at = (sample.to(tl.int64)[:, None] * (in_h * in_w) + h * in_w + w) * channels
    good_c = (c < channels)[None, None, :]
    value = tl.load(
        x + at[:, :, None] + c[None, None, :], mask=(real & in_rows & in_columns)[:, :, None] & good_c, other=0.0
    )
    to = pixel.to(tl.int64)[:, None] * (channels * KERNEL * KERNEL) + tap[None, :]
    tl.store(out + to[:, :, None] + c[None, None, :] * (KERNEL * KERNEL), value, mask=real[:, :, None] & good_c)


@triton.jit(do_not_specialize=["pixels", "in_h", "in_w", "out_h", "out_w"])
def _sum_kernel(
    columns, out, pixels, in_h, in_w, channels, out_h, out_w, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[pixel, c] = Σ over taps of columns[output pixel that sees it through tap, tap, c], for pixels of the
    input."""
    pixel, c = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    column, row, sample = pixel % in_w, pixel // in_w % in_h, pixel // (in_w * in_h)
    good, good_c = pixel < pixels, (c < channels)[None, :]
    total = tl.zeros((BP, BC), tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        h, in_rows = seen(row, tap // KERNEL, out_h, STRIDE, PAD, True)
        w, in_columns = seen(column, tap % KERNEL, out_w, STRIDE, PAD, True)
        at = ((sample * out_h + h) * out_w + w).to(tl.int64) * (channels * KERNEL * KERNEL) + tap * channels
        mask = (good & in_rows & in_columns)[:, None] & good_c
        total += tl.load(columns + at[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
    to = pixel.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=good[:, None] & good_c)


def _cut(taps: int, channels: int) -> tuple[int, int, int]:
    """The taps, channels and pixels of a tile of 4,096 values."""
    wide, block = int(triton.next_power_of_2(taps)), min(64, int(triton.next_power_of_2(channels)))
    return wide, block, max(1, 4096 // (wide * block))


def write_down(x: Tensor, kernel: int, stride: int, padding: int, height: int, width: int) -> Tensor:
    """The columns [n·height·width, in·K·K] of maps with channels-last memory. height, width: those of the output."""
    n, channels, in_h, in_w = x.shape
    pixels, (wide, block, tile) = n * height * width, _cut(kernel * kernel, channels)
    out = torch.empty(pixels, channels * kernel * kernel, dtype=x.dtype, device=x.device)
    _columns_kernel[(triton.cdiv(pixels, tile), triton.cdiv(channels, block))](
        *(x, out, pixels, in_h, in_w, channels, height, width),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, WIDE=wide, BP=tile, BC=block, num_warps=4),
    )
    return out


def _rows(maps: Tensor, clients: int) -> Tensor:
    """A view of maps [G·B, C, H, W] with channels-last memory as [G, B·H·W, C]."""
    return maps.permute(0, 2, 3, 1).reshape(clients, -1, maps.shape[1])


def convolve(columns: Tensor, weight: Tensor, bias: Tensor | None, like: tuple[int, ...]) -> Tensor:
    """The output, of shape `like`; weight [G, out, in·K·K] in the columns' dtype."""
    out = torch.empty(like, dtype=columns.dtype, device=columns.device, memory_format=torch.channels_last)
    rows = _rows(out, len(weight))  # only this is a view; the returned tensor is none, so activations may be in place
    columns = columns.view(len(weight), -1, columns.shape[1])
    if bias is None:
        torch.bmm(columns, weight.mT, out=rows)
    else:
        torch.baddbmm(bias.to(columns.dtype).unsqueeze(1), columns, weight.mT, out=rows)
    return out


def input_gradient(
    slope: Tensor, weight: Tensor, like: tuple[int, ...], kernel: int, stride: int, padding: int
) -> Tensor:
    """The gradient of the input, of shape `like`: products first, then the sum over the taps for each pixel.

    weight: [G, out, K·K·in], with the values of one tap next to each other."""
    n, channels, in_h, in_w = like
    out_h, out_w = slope.shape[2:]
    columns = torch.bmm(_rows(slope, len(weight)), weight)
    out = torch.empty(like, dtype=slope.dtype, device=slope.device, memory_format=torch.channels_last)
    pixels, block = n * in_h * in_w, min(128, int(triton.next_power_of_2(channels)))
    tile = 2048 // block
    _sum_kernel[(triton.cdiv(pixels, tile), triton.cdiv(channels, block))](
        *(columns, out, pixels, in_h, in_w, channels, out_h, out_w),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, BP=tile, BC=block, num_warps=4),
    )
    return out


def weight_gradient(columns: Tensor, slope: Tensor, clients: int, kernel: int) -> Tensor:
    """The gradient [G, out, in, K, K] of the weight, in float32."""
    a, b = _rows(slope, clients).mT, columns.view(clients, -1, columns.shape[1])
    if a.is_cuda and a.dtype == torch.bfloat16:
        grad = torch.bmm(a, b, out_dtype=torch.float32)
    else:
        grad = torch.bmm(a, b).float()
    return grad.view(clients, slope.shape[1], -1, kernel, kernel)
