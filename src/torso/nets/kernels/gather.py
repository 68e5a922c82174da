"""Convolutions of any stride and any number of channels: for each tap, addresses of the pixels to load are computed.

One kernel serves the forward pass and the gradient of the input. `boxes.py` is faster for most shapes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torso.fast import dot_precision

_PROGRAMS = 4 * 132  # enough to keep every multiprocessor of a large GPU busy


@triton.jit
def seen(place, tap, size, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr):
    """The input row (or column) that an output row sees through a tap, and whether it exists.

    BACK: the output row that sees an input row through a tap."""
    if BACK:
        far = place + PAD - tap
        at = far // STRIDE
        inside = (far >= 0) & (at < size)
        if STRIDE > 1:
            inside = inside & (far % STRIDE == 0)
    else:
        at = place * STRIDE + tap - PAD
        inside = (at >= 0) & (at < size)
    return at, inside


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w"])
def _gather_kernel(
    x, weight, bias, out, samples, in_h, in_w, in_c, out_h, out_w, out_c,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr, FLAT: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[pixel, n] = Σ over tap and k of x[pixel seen through tap, k] · weight[tap, k, n], for one client.

    The weight is stored as [G, tap, layer's out, layer's in]. BACK: the gradient of the input, for which k and n change
    places. FLAT: (tap, k) is one index, for inputs with few channels."""
    tiles_n = tl.cdiv(out_c, BN)
    tile, client = tl.program_id(0), tl.program_id(1)
    pixel = (tile // tiles_n) * BM + tl.arange(0, BM)
    n = (tile % tiles_n) * BN + tl.arange(0, BN)
    pixels, good_n = samples * out_h * out_w, n < out_c
    good = pixel < pixels
    column, row = pixel % out_w, pixel // out_w % out_h
    sample = client * samples + pixel // (out_w * out_h)
    image = x + sample.to(tl.int64) * (in_h * in_w * in_c)
    weight += client.to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    by_k, by_n = (out_c, 1) if BACK else (1, in_c)
    total = tl.zeros((BM, BN), tl.float32)
    if FLAT:
        for start in range(0, KERNEL * KERNEL * in_c, BK):
            flat = start + tl.arange(0, BK)
            tap, k = flat // in_c, flat % in_c
            h, in_rows = seen(row[:, None], (tap // KERNEL)[None, :], in_h, STRIDE, PAD, BACK)
            w, in_columns = seen(column[:, None], (tap % KERNEL)[None, :], in_w, STRIDE, PAD, BACK)
            good_k = tap < KERNEL * KERNEL
            mask = good[:, None] & in_rows & in_columns & good_k[None, :]
            a = tl.load(image[:, None] + (h * in_w + w) * in_c + k[None, :], mask=mask, other=0.0)
            at = (tap * in_c * out_c + k * by_k)[:, None] + (n * by_n)[None, :]
            b = tl.load(weight + at, mask=good_k[:, None] & good_n[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        blocks = in_c // BK
        for step in range(KERNEL * KERNEL * blocks):
            tap, k = step // blocks, (step % blocks) * BK + tl.arange(0, BK)
            h, in_rows = seen(row, tap // KERNEL, in_h, STRIDE, PAD, BACK)
            w, in_columns = seen(column, tap % KERNEL, in_w, STRIDE, PAD, BACK)
            at = image + (h * in_w + w) * in_c
            a = tl.load(at[:, None] + k[None, :], mask=(good & in_rows & in_columns)[:, None], other=0.0)
            at = tap * in_c * out_c + (k * by_k)[:, None] + (n * by_n)[None, :]
            b = tl.load(weight + at, mask=good_n[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + client * out_c + n, mask=good_n, other=0.0)[None, :]
    at = out + (client * pixels + pixel).to(tl.int64)[:, None] * out_c + n[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=good[:, None] & good_n[None, :])


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w", "chunk"])
def _weight_kernel(
    x, slope, grad, samples, in_h, in_w, in_c, out_h, out_w, out_c, chunk,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, FLAT: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """grad[n, k, tap] = Σ over a chunk of a client's pixels of x[pixel seen through tap, k] · slope[pixel, n]."""
    tile, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_n = tl.cdiv(out_c, BN)
    n = (tile % tiles_n) * BN + tl.arange(0, BN)
    flat = (tile // tiles_n) * BK + tl.arange(0, BK)
    if FLAT:
        tap, k = flat // in_c, flat % in_c
    else:
        blocks = in_c // BK
        tap, k = tile // tiles_n // blocks, (tile // tiles_n % blocks) * BK + tl.arange(0, BK)
    good_n, good_k = n < out_c, flat < KERNEL * KERNEL * in_c
    pixels = samples * out_h * out_w
    slope += client.to(tl.int64) * pixels * out_c
    total = tl.zeros((BK, BN), tl.float32)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, pixels), BM):
        pixel = start + tl.arange(0, BM)
        good = pixel < pixels
        column, row = pixel % out_w, pixel // out_w % out_h
        sample = client * samples + pixel // (out_w * out_h)
        image = x + sample.to(tl.int64) * (in_h * in_w * in_c)
        if FLAT:
            h, in_rows = seen(row[:, None], (tap // KERNEL)[None, :], in_h, STRIDE, PAD, False)
            w, in_columns = seen(column[:, None], (tap % KERNEL)[None, :], in_w, STRIDE, PAD, False)
            mask = good[:, None] & in_rows & in_columns & good_k[None, :]
            a = tl.load(image[:, None] + (h * in_w + w) * in_c + k[None, :], mask=mask, other=0.0)
        else:
            h, in_rows = seen(row, tap // KERNEL, in_h, STRIDE, PAD, False)
            w, in_columns = seen(column, tap % KERNEL, in_w, STRIDE, PAD, False)
            at = image + (h * in_w + w) * in_c
            a = tl.load(at[:, None] + k[None, :], mask=(good & in_rows & in_columns)[:, None], other=0.0)
        b = tl.load(slope + pixel[:, None] * out_c + n[None, :], mask=good[:, None] & good_n[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    grad += (part * tl.num_programs(2) + client).to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    at = (n * in_c)[None, :] * (KERNEL * KERNEL) + (k * KERNEL * KERNEL + tap)[:, None]
    tl.store(grad + at, total, mask=good_k[:, None] & good_n[None, :])


@triton.jit(do_not_specialize=["in_h", "in_w", "out_h", "out_w"])
def _patch_kernel(
    x, out, pixels, in_h, in_w, in_c: tl.constexpr, out_h, out_w, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Write down what pixels see through all taps; zero beyond the last."""
    k = tl.arange(0, WIDE)
    tap = k // in_c
    good_k, shift = tap < KERNEL * KERNEL, (tap // KERNEL * in_w + tap % KERNEL) * in_c + k % in_c
    pixel = tl.program_id(0) * BP + tl.arange(0, BP)
    column, row, sample = pixel % out_w, pixel // out_w % out_h, pixel // (out_w * out_h)
    corner = (row * STRIDE - PAD) * in_w + column * STRIDE - PAD
    image = x + (sample.to(tl.int64) * (in_h * in_w) + corner) * in_c
    _h, in_rows = seen(row[:, None], (tap // KERNEL)[None, :], in_h, STRIDE, PAD, False)
    _w, in_columns = seen(column[:, None], (tap % KERNEL)[None, :], in_w, STRIDE, PAD, False)
    good = (pixel < pixels)[:, None] & good_k[None, :]
    value = tl.load(image[:, None] + shift[None, :], mask=good & in_rows & in_columns, other=0.0)
    tl.store(out + pixel.to(tl.int64)[:, None] * WIDE + k[None, :], value, mask=(pixel < pixels)[:, None])


def patches(x: Tensor, kernel: int, stride: int, padding: int, wide: int, spare: int = 0) -> Tensor:
    """Patches [n, wide, H', W'] of maps [n, C, H, W]: C values for each tap, then zeros.

    A 1×1 convolution of the patches is the convolution of the maps. `spare`: see `conv.convolution`."""
    x = x.contiguous(memory_format=torch.channels_last)
    n, in_c, in_h, in_w = x.shape
    out_h, out_w = ((side + 2 * padding + spare - kernel) // stride + 1 for side in (in_h, in_w))
    out = torch.empty((n, wide, out_h, out_w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, tile = n * out_h * out_w, 2048 // wide
    _patch_kernel[(triton.cdiv(pixels, tile),)](
        *(x, out, pixels, in_h, in_w),
        **dict(in_c=in_c, out_h=out_h, out_w=out_w, KERNEL=kernel, STRIDE=stride, PAD=padding, WIDE=wide, BP=tile),
    )
    return out


def _blocks(channels: int, kernel: int, wide: int) -> tuple[int, bool]:
    """How many inputs a program takes at a time, and whether taps and channels are one index."""
    for size in (64, 32, 16):
        if size <= wide and channels % size == 0:
            return size, False
    return min(wide, max(16, triton.next_power_of_2(kernel * kernel * channels))), True


def _tile(channels: int) -> int:
    """How many output channels a program computes at a time."""
    return min(128, max(16, int(triton.next_power_of_2(channels))))


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, like: tuple[int, ...], stride: int, padding: int, back: bool
) -> Tensor:
    """The output of shape `like`, or with `back` the gradient of the input; weight [G, K, K, out, in] in x's dtype."""
    (n, in_c, in_h, in_w), (_, out_c, out_h, out_w) = x.shape, like
    clients, kernel = weight.shape[:2]
    out = torch.empty(like, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, tile_n = n // clients * out_h * out_w, _tile(out_c)
    many = clients * triton.cdiv(pixels, 128) * triton.cdiv(out_c, tile_n) >= _PROGRAMS // 2
    tile_m = 128 if many else 64
    block, flat = _blocks(in_c, kernel, 64 if x.element_size() == 2 else 32)
    _gather_kernel[(triton.cdiv(pixels, tile_m) * triton.cdiv(out_c, tile_n), clients)](
        *(x, weight, x if bias is None else bias, out, n // clients, in_h, in_w, in_c, out_h, out_w, out_c),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, BACK=back, FLAT=flat, HAS_BIAS=bias is not None),
        **dict(PRECISION=dot_precision(x), BM=tile_m, BN=tile_n, BK=block),
        **dict(num_warps=8 if tile_m * tile_n > 128 * 64 else 4, num_stages=3),
    )
    return out


def weight_gradient(x: Tensor, slope: Tensor, clients: int, kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient [G, out, in, K, K] of the weight, in float32."""
    (n, in_c, in_h, in_w), (_, out_c, out_h, out_w) = x.shape, slope.shape
    tile_n = min(64, _tile(out_c))
    block, flat = _blocks(in_c, kernel, 64)
    tiles = triton.cdiv(kernel * kernel * in_c, block) * triton.cdiv(out_c, tile_n)
    pixels, step = n // clients * out_h * out_w, 64 if x.element_size() == 2 else 32
    parts = max(1, min(_PROGRAMS // (tiles * clients), pixels // (8 * step)))
    chunk = triton.cdiv(pixels, parts * step) * step
    grad = torch.empty(parts, clients, out_c, in_c, kernel, kernel, dtype=torch.float32, device=x.device)
    _weight_kernel[(tiles, parts, clients)](
        *(x, slope, grad, n // clients, in_h, in_w, in_c, out_h, out_w, out_c, chunk),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, FLAT=flat, PRECISION=dot_precision(x)),
        **dict(BM=step, BN=tile_n, BK=block, num_warps=4, num_stages=3),
    )
    return grad[0] if parts == 1 else grad.sum(0)
