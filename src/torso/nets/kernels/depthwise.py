"""Depthwise convolutions with different weights for each client; memory bandwidth limits them, not computation.

The backward pass reads the slope once per tap and gives both gradients. G clients, B samples, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from torso.nets.kernels.gather import seen

_PROGRAMS = 24 * 132
# values that a program works on at a time, their channels at most, and warps; these were the fastest on an H200
FORWARD = (1024, 64, 2)
BACKWARD = (512, 64, 2), (256, 64, 2)  # for up to 3×3 taps, and for more: a sum is kept for each tap
HALVING = (512, 64, 2), (256, 64, 2)


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w"])
def _forward_kernel(
    x, weight, out, samples, in_h, in_w, out_h, out_w, channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2)
    pixel = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    pixels, good_c = samples * out_h * out_w, c < channels
    good = pixel < pixels
    column, row = pixel % out_w, pixel // out_w % out_h
    sample = client * samples + pixel // (out_w * out_h)
    image = x + sample.to(tl.int64) * (in_h * in_w * channels)
    taps = weight + (client * channels + c) * (KERNEL * KERNEL)
    corner = image + ((row * STRIDE - PAD) * in_w + column * STRIDE - PAD) * channels
    total = tl.zeros((BP, BC), tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        _h, in_rows = seen(row, tap // KERNEL, in_h, STRIDE, PAD, False)
        _w, in_columns = seen(column, tap % KERNEL, in_w, STRIDE, PAD, False)
        at = corner + (tap // KERNEL * in_w + tap % KERNEL) * channels
        mask = (good & in_rows & in_columns)[:, None] & good_c[None, :]
        value = tl.load(at[:, None] + c[None, :], mask=mask, other=0.0)
        total += value.to(tl.float32) * tl.load(taps + tap, mask=good_c, other=0.0)[None, :]
    at = out + (client * pixels + pixel).to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=good[:, None] & good_c[None, :])


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w", "chunk"])
def _backward_kernel(
    x, weight, slope, to_x, to_weight, samples, in_h, in_w, out_h, out_w, channels, chunk,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient of a chunk of a client's input pixels, and their contribution to the gradient of the weight."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, pixels = c < channels, samples * in_h * in_w
    taps = weight + (client * channels + c) * (KERNEL * KERNEL)
    sums = (tl.zeros((BP, BC), tl.float32),) * (KERNEL * KERNEL)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, pixels), BP):
        pixel = start + tl.arange(0, BP)
        good = pixel < pixels
        column, row = pixel % in_w, pixel // in_w % in_h
        sample = client * samples + pixel // (in_w * in_h)
        here = (client * pixels + pixel).to(tl.int64)[:, None] * channels + c[None, :]
        whole = good[:, None] & good_c[None, :]
        value = tl.load(x + here, mask=whole, other=0.0).to(tl.float32)
        image = slope + sample.to(tl.int64) * (out_h * out_w * channels)
        corner = image + ((row + PAD) * out_w + column + PAD) * channels
        total = tl.zeros((BP, BC), tl.float32)
        moved = ()
        for tap in tl.static_range(KERNEL * KERNEL):
            h, in_rows = seen(row, tap // KERNEL, out_h, STRIDE, PAD, True)
            w, in_columns = seen(column, tap % KERNEL, out_w, STRIDE, PAD, True)
            if STRIDE == 1:
                at = corner - (tap // KERNEL * out_w + tap % KERNEL) * channels
            else:
                at = image + (h * out_w + w) * channels
            mask = (good & in_rows & in_columns)[:, None] & good_c[None, :]
            came = tl.load(at[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
            total += came * tl.load(taps + tap, mask=good_c, other=0.0)[None, :]
            moved = moved + (sums[tap] + came * value,)  # noqa: RUF005 (Triton has no unpacking)
        sums = moved
        tl.store(to_x + here, total.to(to_x.dtype.element_ty), mask=whole)
    at = ((part * tl.num_programs(2) + client) * channels + c).to(tl.int64) * (KERNEL * KERNEL)
    for tap in tl.static_range(KERNEL * KERNEL):
        tl.store(to_weight + at + tap, tl.sum(sums[tap], 0), mask=good_c)


@triton.constexpr_function
def _pixel_of(tap, kernel, pad):
    """The number (0 to 3) of the input pixel that a tap sees at stride 2, of four at even and odd rows and columns."""
    return (tap // kernel + pad) % 2 * 2 + (tap % kernel + pad) % 2


@triton.constexpr_function
def _slope_of(tap, kernel, pad):
    """The number of the slope, among those around the four pixels, to which a tap belongs: of 2×2 for 3×3 taps, of 3×3
    for 5×5 taps."""
    before, span = (kernel - 1 - pad) // 2, (kernel + 1) // 2
    row, column = (((t + pad) % 2 + pad - t) // 2 + before for t in (tap // kernel, tap % kernel))
    return row * span + column


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w", "chunk"])
def _backward_halving_kernel(
    x, weight, slope, to_x, to_weight, samples, in_h, in_w, out_h, out_w, channels, chunk,
    KERNEL: tl.constexpr, PAD: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """As `_backward_kernel`, for 3×3 or 5×5 taps and stride 2, where that kernel would find most taps empty.

    It works on windows of four input pixels: these and the slopes around them use every tap once. In a row, pixel
    2r + a belongs to slope r + d through tap a + PAD − 2d, for d from −BEFORE on. There are half as many slopes as
    pixels, rounded up."""
    BEFORE: tl.constexpr = (KERNEL - 1 - PAD) // 2
    SPAN: tl.constexpr = (KERNEL + 1) // 2
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, windows = c < channels, samples * out_h * out_w
    taps = weight + (client * channels + c) * (KERNEL * KERNEL)
    sums = (tl.zeros((BP, BC), tl.float32),) * (KERNEL * KERNEL)
    slope += client.to(tl.int64) * windows * channels
    x += client.to(tl.int64) * samples * in_h * in_w * channels
    to_x += client.to(tl.int64) * samples * in_h * in_w * channels
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, windows), BP):
        window = start + tl.arange(0, BP)
        good = window < windows
        column, row, sample = window % out_w, window // out_w % out_h, window // (out_w * out_h)
        corner = (sample * in_h + row * 2) * in_w + column * 2
        came, values = (), ()
        for p in tl.static_range(SPAN * SPAN):
            r, q = row + (p // SPAN - BEFORE), column + (p % SPAN - BEFORE)
            near = good & (r >= 0) & (r < out_h) & (q >= 0) & (q < out_w)
            at = (window + (p // SPAN - BEFORE) * out_w + (p % SPAN - BEFORE))[:, None] * channels + c[None, :]
            one = tl.load(slope + at, mask=near[:, None] & good_c[None, :], other=0.0).to(tl.float32)
            came = came + (one,)  # noqa: RUF005 (Triton has no unpacking)
        for a in tl.static_range(4):
            inside = good & (row * 2 + a // 2 < in_h) & (column * 2 + a % 2 < in_w)
            at = (corner + a // 2 * in_w + a % 2)[:, None] * channels + c[None, :]
            one = tl.load(x + at, mask=inside[:, None] & good_c[None, :], other=0.0).to(tl.float32)
            values = values + (one,)  # noqa: RUF005
            total = tl.zeros((BP, BC), tl.float32)
            for tap in tl.static_range(KERNEL * KERNEL):
                if _pixel_of(tap, KERNEL, PAD) == a:
                    by = tl.load(taps + tap, mask=good_c, other=0.0)
                    total += came[_slope_of(tap, KERNEL, PAD)] * by[None, :]
            tl.store(to_x + at, total.to(to_x.dtype.element_ty), mask=inside[:, None] & good_c[None, :])
        moved = ()
        for tap in tl.static_range(KERNEL * KERNEL):
            total = sums[tap]
            total += came[_slope_of(tap, KERNEL, PAD)] * values[_pixel_of(tap, KERNEL, PAD)]
            moved = moved + (total,)  # noqa: RUF005
        sums = moved
    at = ((part * tl.num_programs(2) + client) * channels + c).to(tl.int64) * (KERNEL * KERNEL)
    for tap in tl.static_range(KERNEL * KERNEL):
        tl.store(to_weight + at + tap, tl.sum(sums[tap], 0), mask=good_c)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int, spare: int) -> Tensor:
        clients, channels, kernel = weight.shape[0], x.shape[1], weight.shape[-1]
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous()
        height, width = ((side + 2 * padding + spare - kernel) // stride + 1 for side in x.shape[2:])
        like = (x.shape[0], channels, height, width)
        out = torch.empty(like, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        values, most, warps = FORWARD
        samples, block = x.shape[0] // clients, min(most, triton.next_power_of_2(channels))
        tile = values // block
        grid = triton.cdiv(samples * height * width, tile), triton.cdiv(channels, block), clients
        _forward_kernel[grid](
            *(x, weight, out, samples, x.shape[2], x.shape[3], height, width, channels),
            **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, BP=tile, BC=block, num_warps=warps),
        )
        ctx.save_for_backward(x, weight)
        ctx.how = stride, padding
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding = ctx.how
        (n, channels, in_h, in_w), (out_h, out_w) = x.shape, slope.shape[2:]
        clients, kernel = weight.shape[0], weight.shape[-1]
        slope = slope.contiguous(memory_format=torch.channels_last)
        to_x = torch.empty_like(x)
        halved = (out_h, out_w) == ((in_h + 1) // 2, (in_w + 1) // 2)
        halving = stride == 2 and kernel in (3, 5) and padding < kernel // 2 + 1 and halved
        values, most, warps = (HALVING if halving else BACKWARD)[kernel > 3]
        block = min(most, triton.next_power_of_2(channels))
        tile, pixels = values // block, n // clients * (out_h * out_w if halving else in_h * in_w)
        groups = clients * triton.cdiv(channels, block)
        parts = max(1, min(triton.cdiv(_PROGRAMS, groups), pixels // (8 * tile)))
        chunk = triton.cdiv(pixels, parts * tile) * tile
        to_weight = torch.empty(parts, *weight.shape, dtype=torch.float32, device=x.device)
        run = _backward_halving_kernel if halving else _backward_kernel
        how = dict(KERNEL=kernel, PAD=padding) | ({} if halving else dict(STRIDE=stride))
        run[(parts, triton.cdiv(channels, block), clients)](
            *(x, weight, slope, to_x, to_weight, n // clients, in_h, in_w, out_h, out_w, channels, chunk),
            **(how | dict(BP=tile, BC=block, num_warps=warps)),
        )
        return to_x, to_weight[0] if parts == 1 else to_weight.sum(0), *[None] * 3


def depthwise(x: Tensor, weight: Tensor, stride: int, padding: int, spare: int = 0) -> Tensor:
    """The depthwise convolution of maps [G·B, C, H, W] with square kernels [G, C, 1, K, K] (float32).

    `spare`: rows and columns of zeros to add below and on the right, in addition to `padding` on every side."""
    return _Depthwise.apply(x, weight, stride, padding, spare)  # type: ignore[no-any-return,no-untyped-call]
