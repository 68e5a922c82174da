"""Convolutions of stride 1 or 2 by boxes (see `boxes.py`) that compute the transposed products.

A matrix unit of Hopper reads both factors from shared memory, but Triton moves a box through registers first if it is
the left factor. So the box is the right factor here, and the result is transposed once at the end. For the gradient of
the weight the slope is the left factor. It does not depend on the tap, so it is read as a plain matrix of pixels. With
stride 2 a tap sees every other row and column: maps [samples, H, W, C] are described to the copy engine as
[samples, H/2, 2, W/2, 2·C], without a copy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from torso.fast import dot_precision
from torso.nets.kernels import taps
from torso.nets.kernels.boxes import Box, Tiling, _block, _corner, _described
from torso.nets.kernels.norm_kernels import real_pixels


@triton.jit
def _other(x, sample, row, column, down, right, k, channels):
    """A box of every other pixel (stride 2), moved by a tap of at most two pixels."""
    down, right = down + 2, right + 2
    return x.load([sample, row + down // 2 - 1, down % 2, column + right // 2 - 1, right % 2 * channels + k])


@triton.jit(do_not_specialize=["samples", "height", "width"])
def _turned_kernel(
    x, weight, bias, out, real, sums, samples, height, width, in_c, out_c,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr, TURN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SUMS: tl.constexpr, HAS_REAL: tl.constexpr, PRECISION: tl.constexpr,
    BS: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As `boxes._box_kernel`. TURN: the weight is stored as [k, n] and not as [n, k]."""
    tile, client = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(out_c, BN)
    n = tile % tiles_n * BN
    sample, row, column = _corner(tile // tiles_n, samples, height, width, BS, BH, BW)
    total = tl.zeros((BN, BS * BH * BW), tl.float32)
    blocks = in_c // BK
    for step in range(KERNEL * KERNEL * blocks):
        tap, k = step // blocks, step % blocks * BK
        down, right = tap // KERNEL - PAD, tap % KERNEL - PAD
        if STRIDE == 2:
            box = _other(x, client * samples + sample, row, column, down, right, k, in_c)
        elif BACK:
            box = x.load([client, sample, row - down, column - right, k])
        else:
            box = x.load([client, sample, row + down, column + right, k])
        if TURN:
            w = weight.load([client * KERNEL * KERNEL + tap, k, n]).reshape(BK, BN).T
        else:
            w = weight.load([client * KERNEL * KERNEL + tap, n, k]).reshape(BN, BK)
        total = tl.dot(w, box.reshape(BS * BH * BW, BK).T, total, input_precision=PRECISION)
    c = n + tl.arange(0, BN)
    if HAS_BIAS:
        total += tl.load(bias + client * out_c + c, mask=c < out_c, other=0.0)[:, None]
    value = total.to(out.dtype)
    out.store([client, sample, row, column, n], value.T.reshape(1, BS, BH, BW, BN))
    if HAS_SUMS:
        place = tl.arange(0, BS * BH * BW)
        sample += place // (BH * BW)
        good = (sample < samples) & (row + place // BW % BH < height) & (column + place % BW < width)
        counts = real_pixels(real, client, samples, sample, good, HAS_REAL)
        number = tl.sum(counts, 0)
        near = tl.where(counts[None, :] > 0, value.to(tl.float32), 0.0)
        mean = tl.sum(near, 1) / tl.maximum(number, 1.0)
        far = tl.where(counts[None, :] > 0, near - mean[:, None], 0.0)
        sums += (client * (tl.num_programs(0) // tiles_n) + tile // tiles_n) * 3 * out_c
        tl.store(sums + c, mean, mask=c < out_c)
        tl.store(sums + out_c + c, tl.sum(far * far, 1), mask=c < out_c)
        tl.store(sums + 2 * out_c + c, tl.zeros((BN,), tl.float32) + number, mask=c < out_c)


@triton.jit(do_not_specialize=["samples", "height", "width", "share"])
def _turned_weight_kernel(
    x, slope, grad, samples, height, width, in_c, out_c, share,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr,
    BS: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """grad[tap, n, k] = Σ over a share of a client's boxes of slope[pixel, n] · x[pixel seen through tap, k], for TAPS
    adjacent taps. The pixels of a box are consecutive in the slope: the box has whole rows, or rows of one sample."""
    tile, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_n, blocks = tl.cdiv(out_c, BN), in_c // BK
    n, k, first = tile % tiles_n * BN, tile // tiles_n % blocks * BK, tile // tiles_n // blocks * TAPS
    boxes = tl.cdiv(samples, BS) * tl.cdiv(height, BH) * tl.cdiv(width, BW)
    sums = (tl.zeros((BN, BK), tl.float32),) * TAPS
    for box in range(part * share, tl.minimum((part + 1) * share, boxes)):
        sample, row, column = _corner(box, samples, height, width, BS, BH, BW)
        a = slope.load([client, box * (BS * BH * BW), n]).reshape(BS * BH * BW, BN)
        moved = ()
        for t in tl.static_range(TAPS):
            down, right = (first + t) // KERNEL - PAD, (first + t) % KERNEL - PAD
            if STRIDE == 2:
                b = _other(x, client * samples + sample, row, column, down, right, k, in_c)
            else:
                b = x.load([client, sample, row + down, column + right, k])
            b = b.reshape(BS * BH * BW, BK)
            moved = moved + (tl.dot(a.T, b, sums[t], input_precision=PRECISION),)  # noqa: RUF005
        sums = moved
    grad += (part * tl.num_programs(2) + client).to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    c, channel = n + tl.arange(0, BN), k + tl.arange(0, BK)
    for t in tl.static_range(TAPS):
        at = ((first + t) * out_c + c)[:, None] * in_c + channel[None, :]
        tl.store(grad + at, sums[t], mask=(c < out_c)[:, None])


def fits(height: int, width: int, pixels: int) -> bool:
    """Whether the pixels of each box are consecutive in the map, and no box extends over the map's edge."""
    box = Box.of(height, width, pixels)
    return width == box.columns and height % box.rows == 0 and (box.samples == 1 or height == box.rows)


def halved(x: Tensor, box: Box, channels: int) -> TensorDescriptor:
    """The descriptor of maps [n, C, H, W] with even sides as [n, H/2, 2, W/2, 2·C]."""
    n, c, height, width = x.shape
    strides = [height * width * c, 2 * width * c, width * c, 2 * c, 1]
    block = [box.samples, box.rows, 1, box.columns, channels]
    return TensorDescriptor(x, [n, height // 2, 2, width // 2, 2 * c], strides, block)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    like: tuple[int, ...],
    padding: int,
    how: Tiling,
    back: bool = False,
    counted: bool = False,
    real: Tensor | None = None,
    stride: int = 1,
) -> tuple[Tensor, Tensor | None]:
    """The output, or with `back` the gradient of the input, and statistics, as `boxes.convolve`.

    For `back` in float32 the weight [G, K, K, out, in] is transposed first, because the matrix units can read float32
    only along k. `back` with stride 2: see `apart.py`."""
    clients, kernel = weight.shape[:2]
    n, out_c, height, width = like
    out = torch.empty(like, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if back and x.element_size() == 4:
        weight = taps.turned(weight)
    turn = back and x.element_size() == 2
    tile_n, block = min(how.outputs, triton.next_power_of_2(out_c)), _block(x.shape[1], how.inputs)
    box = Box.of(height, width, how.pixels)
    parts = box.needed(n // clients, height, width)
    sums = torch.empty(clients, parts, 3, out_c, dtype=torch.float32, device=x.device) if counted else None
    matrices = weight.view(-1, *weight.shape[-2:])
    part = [1, block, tile_n] if turn else [1, tile_n, block]
    _turned_kernel[(parts * triton.cdiv(out_c, tile_n), clients)](
        _described(x, clients, box, block) if stride == 1 else halved(x, box, block),
        TensorDescriptor(matrices, list(matrices.shape), list(matrices.stride()), part),
        x if bias is None else bias,
        _described(out, clients, box, tile_n),
        *(x if real is None else real, x if sums is None else sums),
        *(n // clients, height, width, x.shape[1], out_c),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, BACK=back, TURN=turn, HAS_BIAS=bias is not None),
        **dict(PRECISION=dot_precision(x), HAS_SUMS=counted, HAS_REAL=real is not None),
        **dict(BS=box.samples, BH=box.rows, BW=box.columns, BN=tile_n, BK=block),
        **dict(num_warps=how.warps, num_stages=how.stages),
    )
    return out, sums


def whole(height: int, width: int, samples: int, pixels: int) -> bool:
    """Whether the boxes of a client contain no sample of the next client, as they might with stride 2.

    A NaN in the next client's samples would make this client's gradient NaN."""
    return samples % Box.of(height, width, pixels).samples == 0


def weight_gradient(
    x: Tensor, slope: Tensor, clients: int, kernel: int, padding: int, how: Tiling, stride: int = 1
) -> Tensor:
    """The gradient [G, out, in, K, K] of the weight, in float32. `how.pixels` must fit the maps (`fits`)."""
    (n, in_c, _, _), (_, out_c, height, width) = x.shape, slope.shape
    tile_n, block = min(how.outputs, triton.next_power_of_2(out_c)), _block(in_c, how.inputs)
    tiles = kernel * kernel // how.taps * (in_c // block) * triton.cdiv(out_c, tile_n)
    box = Box.of(height, width, how.pixels)
    boxes = box.needed(n // clients, height, width)
    share = triton.cdiv(boxes, max(1, min(triton.cdiv(2 * 132, tiles * clients), boxes // 8)))
    parts = triton.cdiv(boxes, share)
    shares = torch.empty(parts, clients, kernel, kernel, out_c, in_c, dtype=torch.float32, device=x.device)
    pixels = n // clients * height * width
    stretch = TensorDescriptor(slope, [clients, pixels, out_c], [pixels * out_c, out_c, 1], [1, how.pixels, tile_n])
    _turned_weight_kernel[(tiles, parts, clients)](
        *(_described(x, clients, box, block) if stride == 1 else halved(x, box, block), stretch, shares),
        *(n // clients, height, width, in_c, out_c, share),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, TAPS=how.taps, PRECISION=dot_precision(x)),
        **dict(BS=box.samples, BH=box.rows, BW=box.columns, BN=tile_n, BK=block),
        **dict(num_warps=how.warps, num_stages=how.stages),
    )
    return taps.collect(shares)
