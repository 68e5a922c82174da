"""The gradient of a float32 weight for stride 1 and padding K // 2, with each channel as a line of pixels.

The matrix units can read float32 factors only along the summed index, here the pixels, but maps have the channels next
to each other. So map and slope are first written as [G, C, L]: a channel's pixels in one line, with `K // 2` rows of
zeros after every sample. A tap above or below is then a shift along the line by whole rows, and the copy engine gives
zeros beyond the ends of the line. The copy engine can load only from multiples of 16 bytes (an H200 stopped with
"illegal instruction" at other addresses), so the map is written K times, moved to the left or right, with zeros at the
ends of the rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from torso.fast import dot_precision
from torso.nets.kernels import taps
from torso.nets.kernels.boxes import Tiling

_STEP = 32  # pixels in one product: 128 bytes


@triton.jit(do_not_specialize=["samples", "height", "width", "length"])
def _line_kernel(
    x, out, samples, height, width, channels, length, GAP: tl.constexpr, COPIES: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """out[copy, c, place] = x[sample, row, column + copy - COPIES // 2, c] if that is a pixel, else zero."""
    client = tl.program_id(2).to(tl.int64)
    place, c = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    row, sample = place // width % (height + GAP), place // (width * (height + GAP))
    good, good_c = (row < height) & (sample < samples), c < channels
    inside = good_c[:, None] & (place < length)[None, :]
    x += client * samples * height * width * channels
    for copy in tl.static_range(COPIES):
        column = place % width + copy - COPIES // 2
        real = good & (column >= 0) & (column < width)
        at = ((sample * height + row) * width + column).to(tl.int64)[:, None] * channels + c[None, :]
        value = tl.load(x + at, mask=real[:, None] & good_c[None, :], other=0.0)
        to = (copy * tl.num_programs(2) + client) * channels * length + c.to(tl.int64)[:, None] * length
        tl.store(out + to + place[None, :], value.T, mask=inside)


@triton.jit(do_not_specialize=["length", "width", "share"])
def _line_weight_kernel(
    x, slope, grad, length, width, in_c, out_c, share,
    KERNEL: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BL: tl.constexpr,
):  # fmt: skip
    """grad[tap, n, k] = Σ over a share of the line of slope[n, l] · x[k, l as the tap sees it], for TAPS taps at a
    time."""
    tile, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_n, blocks = tl.cdiv(out_c, BN), tl.cdiv(in_c, BK)
    n, k, first = tile % tiles_n * BN, tile // tiles_n % blocks * BK, tile // tiles_n // blocks * TAPS
    sums = (tl.zeros((BN, BK), tl.float32),) * TAPS
    for step in range(part * share, tl.minimum((part + 1) * share, tl.cdiv(length, BL))):
        a = slope.load([client, n, step * BL]).reshape(BN, BL)
        moved = ()
        for t in tl.static_range(TAPS):
            copy, down = (first + t) % KERNEL, (first + t) // KERNEL - KERNEL // 2
            b = x.load([copy * tl.num_programs(2) + client, k, step * BL + down * width]).reshape(BK, BL)
            moved = moved + (tl.dot(a, b.T, sums[t], input_precision=PRECISION),)  # noqa: RUF005
        sums = moved
    grad += (part * tl.num_programs(2) + client).to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    c, channel = n + tl.arange(0, BN), k + tl.arange(0, BK)
    inside = (c < out_c)[:, None] & (channel < in_c)[None, :]
    for t in tl.static_range(TAPS):
        at = ((first + t) * out_c + c)[:, None] * in_c + channel[None, :]
        tl.store(grad + at, sums[t], mask=inside)


def as_lines(x: Tensor, clients: int, gap: int, copies: int = 1) -> Tensor:
    """Maps [G·B, C, H, W] as lines [copies·G, C, L]; L is a multiple of 4, as the copy engine needs it.

    `gap`: rows of zeros after every sample."""
    n, channels, height, width = x.shape
    length = triton.cdiv(n // clients * (height + gap) * width, 4) * 4
    out = torch.empty(copies * clients, channels, length, dtype=x.dtype, device=x.device)
    grid = triton.cdiv(length, 64), triton.cdiv(channels, 32), clients
    _line_kernel[grid](
        *(x, out, n // clients, height, width, channels, length),
        **dict(GAP=gap, COPIES=copies, BP=64, BC=32, num_warps=4),
    )
    return out


def weight_gradient(x: Tensor, slope: Tensor, clients: int, kernel: int, how: Tiling) -> Tensor:
    """The gradient [G, out, in, K, K] of the weight, in float32. The width must be a multiple of 4, or the kernel 1."""
    in_c, (_, out_c, _, width) = x.shape[1], slope.shape
    gap = kernel // 2
    a, b = as_lines(slope, clients, gap), as_lines(x, clients, gap, kernel)
    tile_n, block = (min(most, triton.next_power_of_2(c)) for most, c in ((how.outputs, out_c), (how.inputs, in_c)))
    tiles = kernel * kernel // how.taps * triton.cdiv(in_c, block) * triton.cdiv(out_c, tile_n)
    length = a.shape[2]
    steps = triton.cdiv(length, _STEP)
    share = triton.cdiv(steps, max(1, min(triton.cdiv(2 * 132, tiles * clients), steps // 16)))
    parts = triton.cdiv(steps, share)
    shares = torch.empty(parts, clients, kernel, kernel, out_c, in_c, dtype=torch.float32, device=x.device)
    _line_weight_kernel[(tiles, parts, clients)](
        TensorDescriptor(b, list(b.shape), list(b.stride()), [1, block, _STEP]),
        TensorDescriptor(a, list(a.shape), list(a.stride()), [1, tile_n, _STEP]),
        *(shares, length, width, in_c, out_c, share),
        **dict(KERNEL=kernel, TAPS=how.taps, PRECISION=dot_precision(x), BN=tile_n, BK=block, BL=_STEP),
        **dict(num_warps=how.warps, num_stages=how.stages),
    )
    return taps.collect(shares)
