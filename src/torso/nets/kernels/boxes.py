"""Convolutions of stride 1 whose tiles are boxes of pixels, loaded by the GPU's copy engine (TMA, Hopper and later).

A tile of outputs is a box of samples × rows × columns. Through each tap it sees the same box, moved by a pixel. The
copy engine gives zeros for pixels outside an image, so no addresses and no masks are computed. `gather.py` computes
convolutions of any shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from torso.fast import dot_precision
from torso.nets.kernels.norm_kernels import real_pixels

_PROGRAMS = 3 * 132  # enough to keep every multiprocessor of a large GPU busy


class Tiling(NamedTuple):
    """The sizes of what a program works on at a time."""

    pixels: int
    outputs: int  # output channels
    inputs: int  # input channels
    warps: int
    stages: int  # loads that are under way at the same time
    taps: int = 1


def forward_tiling(out_c: int, size: int) -> Tiling:
    """The tiling of a forward pass; it was the fastest on an H200, like all tilings here. `size`: bytes per number."""
    wide = 128 // size  # the copy engine is fastest with rows of 128 bytes
    return Tiling(256, 64, wide, 8, 3) if out_c <= 64 else Tiling(128, 128, wide, 8, 4)


def weight_tiling(kernel: int, size: int) -> Tiling:
    """The tiling for the gradient of the weight. `size`: bytes per number."""
    return Tiling(32, 64, 64, 4, 3, taps=kernel) if size == 4 else Tiling(128, 64, 64, 4, 3)


class Box(NamedTuple):
    """The sizes of one tile of pixels: samples × rows × columns."""

    samples: int
    rows: int
    columns: int

    @classmethod
    def of(cls, height: int, width: int, pixels: int) -> Box:
        """A box of `pixels` pixels that fits maps of height × width."""
        columns = min(triton.next_power_of_2(width), pixels)
        rows = min(triton.next_power_of_2(height), pixels // columns)
        return cls(pixels // columns // rows, rows, columns)

    def needed(self, samples: int, height: int, width: int) -> int:
        """How many boxes cover the maps of a client's samples."""
        return triton.cdiv(samples, self.samples) * triton.cdiv(height, self.rows) * triton.cdiv(width, self.columns)  # type: ignore[no-any-return]


def boxable(x: Tensor, out_c: int, kernel: int, stride: int, padding: int) -> bool:
    """Whether the copy engine can load what this convolution needs: whole blocks of channels and rows of 16 bytes.

    With stride 2 (`turned.py`, `apart.py`) the sides of the maps must be even."""
    modern = not x.is_cuda or torch.cuda.get_device_capability(x.device) >= (9, 0)
    half = stride == 2 and kernel in (1, 3) and padding == kernel // 2 and x.shape[2] % 2 == x.shape[3] % 2 == 0
    return modern and (stride == 1 or half) and x.shape[1] % 16 == 0 and out_c % 16 == 0


@triton.jit
def _corner(box, samples, height, width, BS: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr):
    """The first sample, row and column of a box, from its number."""
    across, down = tl.cdiv(width, BW), tl.cdiv(height, BH)
    return box // (across * down) * BS, box // across % down * BH, box % across * BW


@triton.jit(do_not_specialize=["samples", "height", "width"])
def _box_kernel(
    x, weight, bias, out, real, sums, samples, height, width, in_c, out_c,
    KERNEL: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUMS: tl.constexpr,
    HAS_REAL: tl.constexpr, PRECISION: tl.constexpr, BS: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One box of outputs by BN channels. Height and width are those of the outputs.

    BACK: the gradient of the input instead. HAS_SUMS: the box's statistics for BatchNorm too, as `norm.py` computes
    them from the map."""
    tile, client = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(out_c, BN)
    n = tile % tiles_n * BN
    sample, row, column = _corner(tile // tiles_n, samples, height, width, BS, BH, BW)
    total = tl.zeros((BS * BH * BW, BN), tl.float32)
    blocks = in_c // BK
    for step in range(KERNEL * KERNEL * blocks):
        tap, k = step // blocks, step % blocks * BK
        down, right = tap // KERNEL - PAD, tap % KERNEL - PAD
        if BACK:
            a = x.load([client, sample, row - down, column - right, k])
            b = weight.load([client * KERNEL * KERNEL + tap, k, n]).reshape(BK, BN)
        else:
            a = x.load([client, sample, row + down, column + right, k])
            b = weight.load([client * KERNEL * KERNEL + tap, n, k]).reshape(BN, BK).T
        total = tl.dot(a.reshape(BS * BH * BW, BK), b, total, input_precision=PRECISION)
    if HAS_BIAS:
        c = n + tl.arange(0, BN)
        total += tl.load(bias + client * out_c + c, mask=c < out_c, other=0.0)[None, :]
    value = total.to(out.dtype)
    out.store([client, sample, row, column, n], value.reshape(1, BS, BH, BW, BN))
    if HAS_SUMS:
        place = tl.arange(0, BS * BH * BW)
        sample += place // (BH * BW)
        good = (sample < samples) & (row + place // BW % BH < height) & (column + place % BW < width)
        counts = real_pixels(real, client, samples, sample, good, HAS_REAL)
        number = tl.sum(counts, 0)
        near = tl.where(counts[:, None] > 0, value.to(tl.float32), 0.0)
        mean = tl.sum(near, 0) / tl.maximum(number, 1.0)
        far = tl.where(counts[:, None] > 0, near - mean[None, :], 0.0)
        c = n + tl.arange(0, BN)
        sums += (client * (tl.num_programs(0) // tiles_n) + tile // tiles_n) * 3 * out_c
        tl.store(sums + c, mean, mask=c < out_c)
        tl.store(sums + out_c + c, tl.sum(far * far, 0), mask=c < out_c)
        tl.store(sums + 2 * out_c + c, tl.zeros((BN,), tl.float32) + number, mask=c < out_c)


@triton.jit(do_not_specialize=["samples", "height", "width", "share"])
def _box_weight_kernel(
    x, slope, grad, samples, height, width, in_c, out_c, share,
    KERNEL: tl.constexpr, PAD: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr, BS: tl.constexpr,
    BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """grad[tap, k, n] = Σ over a share of a client's boxes of x[pixel seen through tap, k] · slope[pixel, n].

    TAPS adjacent taps are computed together, since they use the same slope."""
    tile, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_n, blocks = tl.cdiv(out_c, BN), in_c // BK
    n, k, first = tile % tiles_n * BN, tile // tiles_n % blocks * BK, tile // tiles_n // blocks * TAPS
    boxes = tl.cdiv(samples, BS) * tl.cdiv(height, BH) * tl.cdiv(width, BW)
    sums = (tl.zeros((BK, BN), tl.float32),) * TAPS
    for box in range(part * share, tl.minimum((part + 1) * share, boxes)):
        sample, row, column = _corner(box, samples, height, width, BS, BH, BW)
        b = slope.load([client, sample, row, column, n]).reshape(BS * BH * BW, BN)
        moved = ()
        for t in tl.static_range(TAPS):
            down, right = (first + t) // KERNEL - PAD, (first + t) % KERNEL - PAD
            a = x.load([client, sample, row + down, column + right, k]).reshape(BS * BH * BW, BK)
            moved = moved + (tl.dot(a.T, b, sums[t], input_precision=PRECISION),)  # noqa: RUF005
        sums = moved
    grad += (part * tl.num_programs(2) + client).to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    c, rows = n + tl.arange(0, BN), k + tl.arange(0, BK)
    for t in tl.static_range(TAPS):
        at = ((first + t) * in_c + rows)[:, None] * out_c + c[None, :]
        tl.store(grad + at, sums[t], mask=(c < out_c)[None, :])


@triton.jit(do_not_specialize=["parts"])
def _join_kernel(shares, grad, parts, in_c, out_c, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """grad[n, k, tap] = Σ over parts of shares[part, tap, k, n], for one client."""
    client, clients = tl.program_id(1), tl.num_programs(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = TAPS * in_c * out_c
    tap, k, n = place % TAPS, place // TAPS % in_c, place // (TAPS * in_c)
    at, total = (tap * in_c + k) * out_c + n, tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        share = shares + (part * clients + client).to(tl.int64) * size
        total += tl.load(share + at, mask=place < size, other=0.0)
    tl.store(grad + client.to(tl.int64) * size + place, total, mask=place < size)


def _described(x: Tensor, clients: int, box: Box, channels: int) -> TensorDescriptor:
    """The descriptor of maps [G·B, C, H, W] as [G, B, H, W, C], so that a box never reaches into the next client."""
    n, c, height, width = x.shape
    shape = [clients, n // clients, height, width, c]
    strides = [n // clients * height * width * c, height * width * c, width * c, c, 1]
    return TensorDescriptor(x, shape, strides, [1, *box, channels])


def _block(channels: int, most: int) -> int:
    """The largest block of channels, up to `most`, that divides them."""
    return next(size for size in (128, 64, 32, 16) if size <= most and channels % size == 0)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    like: tuple[int, ...],
    padding: int,
    back: bool = False,
    counted: bool = False,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output of shape `like`, or with `back` the gradient of the input; weight [G, K, K, out, in] in x's dtype.

    `counted`: its partial statistics [G, parts, 3, out] over real samples too, for `norm.normalise`."""
    clients, kernel = weight.shape[:2]
    n, out_c, height, width = like
    out = torch.empty(like, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    how = forward_tiling(out_c, x.element_size())
    tile_n, block = min(how.outputs, triton.next_power_of_2(out_c)), _block(x.shape[1], how.inputs)
    box = Box.of(height, width, how.pixels)
    parts = box.needed(n // clients, height, width)
    sums = torch.empty(clients, parts, 3, out_c, dtype=torch.float32, device=x.device) if counted else None
    taps = weight.view(-1, *weight.shape[-2:])
    part = [1, block, tile_n] if back else [1, tile_n, block]
    _box_kernel[(parts * triton.cdiv(out_c, tile_n), clients)](
        _described(x, clients, box, block),
        TensorDescriptor(taps, list(taps.shape), list(taps.stride()), part),
        x if bias is None else bias,
        _described(out, clients, box, tile_n),
        *(x if real is None else real, x if sums is None else sums),
        *(n // clients, height, width, x.shape[1], out_c),
        **dict(KERNEL=kernel, PAD=padding, BACK=back, HAS_BIAS=bias is not None, PRECISION=dot_precision(x)),
        **dict(HAS_SUMS=counted, HAS_REAL=real is not None),
        **dict(BS=box.samples, BH=box.rows, BW=box.columns, BN=tile_n, BK=block),
        **dict(num_warps=how.warps, num_stages=how.stages),
    )
    return out, sums


def weight_gradient(x: Tensor, slope: Tensor, clients: int, kernel: int, padding: int) -> Tensor:
    """The gradient [G, out, in, K, K] of the weight, in float32."""
    (n, in_c, _, _), (_, out_c, height, width) = x.shape, slope.shape
    how = weight_tiling(kernel, x.element_size())
    tile_n, block = min(how.outputs, triton.next_power_of_2(out_c)), _block(in_c, how.inputs)
    tiles = kernel * kernel // how.taps * (in_c // block) * triton.cdiv(out_c, tile_n)
    box = Box.of(height, width, how.pixels)
    boxes = box.needed(n // clients, height, width)
    share = triton.cdiv(boxes, max(1, min(triton.cdiv(_PROGRAMS, tiles * clients), boxes // 8)))
    parts = triton.cdiv(boxes, share)
    shares = torch.empty(parts, clients, kernel * kernel, in_c, out_c, dtype=torch.float32, device=x.device)
    _box_weight_kernel[(tiles, parts, clients)](
        *(_described(x, clients, box, block), _described(slope, clients, box, tile_n), shares),
        *(n // clients, height, width, in_c, out_c, share),
        **dict(KERNEL=kernel, PAD=padding, TAPS=how.taps, PRECISION=dot_precision(x)),
        **dict(BS=box.samples, BH=box.rows, BW=box.columns, BN=tile_n, BK=block),
        **dict(num_warps=how.warps, num_stages=how.stages),
    )
    grad = torch.empty(clients, out_c, in_c, kernel, kernel, dtype=torch.float32, device=x.device)
    grid = triton.cdiv(shares[0, 0].numel(), 1024), clients
    _join_kernel[grid](shares, grad, parts, in_c, out_c, TAPS=kernel * kernel, BLOCK=1024)
    return grad
