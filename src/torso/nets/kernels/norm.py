"""BatchNorm by each client's own batch, with ReLU and a 2×2 max-pool in the same pass over the map.

Four kernels, each reading the map y once: statistics; normalise, pool, ReLU; the two sums of the backward pass; the
gradient of y. What the pool and ReLU let through is worked out again from y going back, so nothing else is kept.
Sums are taken in parts of a client's pixels; whoever needs a sum adds the parts up, in a fixed order.
G clients, B samples, C channels. A window is what becomes one output pixel: 2×2 pixels with the pool, else one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_PARTS = 256  # at most; a program adds them up at its start
_PROGRAMS = 12 * 132
TILE = (2048, 64, 4)  # values that a program works on at a time, of so many channels, by so many warps


@triton.jit
def _real_rows(real, client, samples, sample, good, HAS_REAL: tl.constexpr):
    """1 for pixels of real samples, 0 for padding and beyond the end."""
    if HAS_REAL:
        return tl.load(real + client * samples + sample, mask=good, other=0.0)
    return good.to(tl.float32)


@triton.jit
def _some_parts(sums, client, first, parts, channels, c, good_c, WHICH: tl.constexpr, KINDS: tl.constexpr):
    """One kind of partial sum, [16, BC] from the first on, zero beyond the number of parts."""
    part = first + tl.arange(0, 16)
    at = ((client * parts + part) * KINDS + WHICH)[:, None] * channels + c[None, :]
    return tl.load(sums + at, mask=(part < parts)[:, None] & good_c[None, :], other=0.0)


@triton.jit
def _statistics(sums, client, parts, channels, c, good_c):
    """Number of values, mean and variance of all parts together."""
    n, mean, square = tl.zeros_like(c).to(tl.float32), tl.zeros_like(c).to(tl.float32), tl.zeros_like(c).to(tl.float32)
    for first in range(0, parts, 16):
        numbers = _some_parts(sums, client, first, parts, channels, c, good_c, 2, 3)
        mean += tl.sum(numbers * _some_parts(sums, client, first, parts, channels, c, good_c, 0, 3), 0)
        n += tl.sum(numbers, 0)
    n = tl.maximum(n, 1.0)
    mean /= n
    for first in range(0, parts, 16):
        numbers = _some_parts(sums, client, first, parts, channels, c, good_c, 2, 3)
        apart = _some_parts(sums, client, first, parts, channels, c, good_c, 0, 3) - mean[None, :]
        square += tl.sum(_some_parts(sums, client, first, parts, channels, c, good_c, 1, 3), 0)
        square += tl.sum(numbers * apart * apart, 0)
    return n, mean, tl.maximum(square / n, 0.0)


@triton.jit(do_not_specialize=["samples", "size", "chunk"])
def _statistics_kernel(
    y, real, sums, samples, size, channels, chunk, HAS_REAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr
):
    """Mean, squared deviation and number of values of a chunk. Deviations are from the mean of its first pixels, so
    that a mean far from zero costs no digits."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, pixels = c < channels, samples * size
    y += client.to(tl.int64) * pixels * channels
    first = part * chunk + tl.arange(0, BP)
    last = tl.minimum((part + 1) * chunk, pixels)
    good = first < last
    counts = _real_rows(real, client, samples, first // size, good, HAS_REAL)
    value = tl.load(y + first[:, None] * channels + c[None, :], mask=good[:, None] & good_c[None, :], other=0.0)
    value = tl.where(counts[:, None] > 0, value.to(tl.float32), 0.0)
    about = tl.sum(value, 0) / tl.maximum(tl.sum(counts, 0), 1.0)
    total, square = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    number = tl.zeros((BP,), tl.float32)
    for start in range(part * chunk, last, BP):
        pixel = start + tl.arange(0, BP)
        good = pixel < last
        counts = _real_rows(real, client, samples, pixel // size, good, HAS_REAL)
        seen = tl.load(y + pixel[:, None] * channels + c[None, :], mask=good[:, None] & good_c[None, :], other=0.0)
        far = tl.where(counts[:, None] > 0, seen.to(tl.float32) - about[None, :], 0.0)
        total += far
        square += far * far
        number += counts
    n = tl.sum(number, 0)
    shift = tl.sum(total, 0) / tl.maximum(n, 1.0)
    sums += (client * tl.num_programs(0) + part) * 3 * channels
    tl.store(sums + c, about + shift, mask=good_c)
    tl.store(sums + channels + c, tl.sum(square, 0) - n * shift * shift, mask=good_c)
    tl.store(sums + 2 * channels + c, tl.zeros((BC,), tl.float32) + n, mask=good_c)


@triton.jit
def _window(tile, samples, high, wide, height, width, BP: tl.constexpr, POOL: tl.constexpr):
    """Pixels of the upper left corners of windows, with their samples and places."""
    window = tile + tl.arange(0, BP)
    column, row, sample = window % wide, window // wide % high, window // (wide * high)
    return (sample * height + row * POOL) * width + column * POOL, sample, row, column, sample < samples


@triton.jit
def _normal(y, at, channels, c, mask, mean, scale, bias, counts):
    """Deviations from the mean, zero for padding, and what BatchNorm makes of them."""
    value = tl.load(y + at[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
    far = tl.where(counts[:, None] > 0, value - mean[None, :], 0.0)
    return far, far * scale[None, :] + bias[None, :]


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide", "chunk", "parts"])
def _apply_kernel(
    y,
    real,
    sums,
    weight,
    bias,
    out,
    mean_out,
    var_out,
    number_out,
    samples,
    height,
    width,
    high,
    wide,
    channels,
    chunk,
    parts,
    eps,
    HAS_REAL: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """Join the parts' statistics; normalise, pool and ReLU a chunk of windows. The first chunk writes down which."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c = c < channels
    n, mean, var = _statistics(sums, client, parts, channels, c, good_c)
    own = client * channels + c
    if part == 0:
        tl.store(mean_out + own, mean, mask=good_c)
        tl.store(var_out + own, var, mask=good_c)
        tl.store(number_out + own, n, mask=good_c)
    scale = tl.load(weight + own, mask=good_c, other=0.0) / tl.sqrt(var + eps)
    shift = tl.load(bias + own, mask=good_c, other=0.0)
    y += client.to(tl.int64) * samples * height * width * channels
    out += client.to(tl.int64) * samples * high * wide * channels
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, samples * high * wide), BP):
        at, sample, _row, _column, good = _window(start, samples, high, wide, height, width, BP, POOL)
        counts = _real_rows(real, client, samples, sample, good, HAS_REAL)
        mask = good[:, None] & good_c[None, :]
        _far, best = _normal(y, at, channels, c, mask, mean, scale, shift, counts)
        if POOL == 2:
            for k in tl.static_range(1, 4):
                step = (k // 2) * width + k % 2
                _far, z = _normal(y, at + step, channels, c, mask, mean, scale, shift, counts)
                best = tl.maximum(best, z)
        if RELU:
            best = tl.maximum(best, 0.0)
        window = start + tl.arange(0, BP)
        tl.store(out + window[:, None] * channels + c[None, :], best.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide", "chunk"])
def _sums_kernel(
    y,
    real,
    slope,
    mean,
    var,
    weight,
    bias,
    sums,
    samples,
    height,
    width,
    high,
    wide,
    channels,
    chunk,
    eps,
    HAS_REAL: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """Σ slope and Σ slope · deviation over a chunk of windows, after what ReLU and the pool let through."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, own = c < channels, client * channels + c
    centre = tl.load(mean + own, mask=good_c, other=0.0)
    spread = tl.sqrt(tl.load(var + own, mask=good_c, other=1.0) + eps)
    scale = tl.load(weight + own, mask=good_c, other=0.0) / spread
    shift = tl.load(bias + own, mask=good_c, other=0.0)
    y += client.to(tl.int64) * samples * height * width * channels
    slope += client.to(tl.int64) * samples * high * wide * channels
    plain, tilted = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, samples * high * wide), BP):
        at, sample, _row, _column, good = _window(start, samples, high, wide, height, width, BP, POOL)
        counts = _real_rows(real, client, samples, sample, good, HAS_REAL)
        mask = good[:, None] & good_c[None, :]
        window = start + tl.arange(0, BP)
        came = tl.load(slope + window[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
        far, best = _normal(y, at, channels, c, mask, centre, scale, shift, counts)
        if POOL == 2:
            for k in tl.static_range(1, 4):
                step = (k // 2) * width + k % 2
                other, z = _normal(y, at + step, channels, c, mask, centre, scale, shift, counts)
                far, best = tl.where(z > best, other, far), tl.maximum(z, best)
        passes = counts[:, None] > 0
        if RELU:
            passes = passes & (best > 0)
        came = tl.where(passes, came, 0.0)
        plain += came
        tilted += came * far
    sums += (client * tl.num_programs(0) + part) * 2 * channels
    tl.store(sums + c, tl.sum(plain, 0), mask=good_c)
    tl.store(sums + channels + c, tl.sum(tilted, 0) / spread, mask=good_c)


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide", "chunk", "parts"])
def _gradient_kernel(
    y,
    real,
    slope,
    mean,
    var,
    number,
    weight,
    bias,
    sums,
    to_y,
    to_weight,
    to_bias,
    samples,
    height,
    width,
    high,
    wide,
    channels,
    chunk,
    parts,
    eps,
    HAS_REAL: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """scale · (slope − mean slope − x̂ · mean of slope · x̂), pixel by pixel; windows at the edge may be cut off."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, own = c < channels, client * channels + c
    centre = tl.load(mean + own, mask=good_c, other=0.0)
    spread = tl.sqrt(tl.load(var + own, mask=good_c, other=1.0) + eps)
    n = tl.load(number + own, mask=good_c, other=1.0)
    scale = tl.load(weight + own, mask=good_c, other=0.0) / spread
    shift = tl.load(bias + own, mask=good_c, other=0.0)
    plain, tilted = tl.zeros_like(centre), tl.zeros_like(centre)
    for first in range(0, parts, 16):
        plain += tl.sum(_some_parts(sums, client, first, parts, channels, c, good_c, 0, 2), 0)
        tilted += tl.sum(_some_parts(sums, client, first, parts, channels, c, good_c, 1, 2), 0)
    if part == 0:
        tl.store(to_bias + own, plain, mask=good_c)
        tl.store(to_weight + own, tilted, mask=good_c)
    level, lean = plain / n, tilted / (n * spread)
    y += client.to(tl.int64) * samples * height * width * channels
    to_y += client.to(tl.int64) * samples * height * width * channels
    slope += client.to(tl.int64) * samples * (height // POOL) * (width // POOL) * channels
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, samples * high * wide), BP):
        at, sample, row, column, good = _window(start, samples, high, wide, height, width, BP, POOL)
        counts = _real_rows(real, client, samples, sample, good, HAS_REAL)
        pooled = good & (row < height // POOL) & (column < width // POOL)
        window = (sample * (height // POOL) + row) * (width // POOL) + column
        mask = pooled[:, None] & good_c[None, :]
        came = tl.load(slope + window[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
        whole = good[:, None] & good_c[None, :]
        far, best = _normal(y, at, channels, c, whole, centre, scale, shift, counts)
        which = tl.zeros((BP, BC), tl.int32)
        if POOL == 2:
            for k in tl.static_range(1, 4):
                step = (k // 2) * width + k % 2
                _far, z = _normal(y, at + step, channels, c, mask, centre, scale, shift, counts)
                which, best = tl.where(z > best, k, which), tl.maximum(z, best)
        passes = mask & (counts[:, None] > 0)
        if RELU:
            passes = passes & (best > 0)
        came = tl.where(passes, came, 0.0)
        for k in tl.static_range(POOL * POOL):
            there = whole
            if POOL == 2:
                there = whole & ((row * 2 + k // 2 < height) & (column * 2 + k % 2 < width))[:, None]
            step = (k // 2) * width + k % 2
            if k > 0:  # again rather than kept: it comes from the cache, and registers are short
                far, _z = _normal(y, at + step, channels, c, there, centre, scale, shift, counts)
            slant = tl.where(which == k, came, 0.0) - level[None, :] - far * lean[None, :]
            slant = tl.where(counts[:, None] > 0, slant * scale[None, :], 0.0)
            tl.store(to_y + (at + step)[:, None] * channels + c[None, :], slant.to(to_y.dtype.element_ty), mask=there)


class _Plan(NamedTuple):
    """How a map is cut up: programs [parts, blocks of channels, G], each over `chunk` windows of `tile` at a time."""

    grid: tuple[int, int, int]
    chunk: int
    tile: int
    block: int

    @classmethod
    def of(cls, windows: int, channels: int, clients: int, pool: int) -> _Plan:
        values, most, _ = TILE
        block = min(most, triton.next_power_of_2(channels))
        tile = values // block // pool // pool
        blocks = triton.cdiv(channels, block)
        parts = max(1, min(_PARTS, triton.cdiv(_PROGRAMS, blocks * clients), triton.cdiv(windows, tile)))
        chunk = triton.cdiv(triton.cdiv(windows, parts), tile) * tile
        return cls((triton.cdiv(windows, chunk), blocks, clients), chunk, tile, block)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        before: Tensor | None,
        real: Tensor | None,
        eps: float,
        relu: bool,
        pool: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        clients, channels = weight.shape
        n, _, height, width = y.shape
        samples, high, wide = n // clients, height // pool, width // pool
        y, weight, bias = y.contiguous(memory_format=torch.channels_last), weight.contiguous(), bias.contiguous()
        mask = weight if real is None else real.to(torch.float32).contiguous()
        plan = _Plan.of(samples * height * width, channels, clients, 1)
        parts = plan.grid[0]
        sums = torch.empty(clients, parts, 3, channels, dtype=torch.float32, device=y.device)
        how = dict(HAS_REAL=real is not None, BP=plan.tile, BC=plan.block, num_warps=TILE[2])
        _statistics_kernel[plan.grid](y, mask, sums, samples, height * width, channels, plan.chunk, **how)
        mean, var, number = torch.empty(3, clients, channels, dtype=torch.float32, device=y.device).unbind()
        like = (n, channels, high, wide)
        out = torch.empty(like, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
        plan = _Plan.of(samples * high * wide, channels, clients, pool)
        how |= dict(RELU=relu, POOL=pool, BP=plan.tile, BC=plan.block)
        _apply_kernel[plan.grid](
            *(y, mask, sums, weight, bias, out, mean, var, number),
            *(samples, height, width, high, wide, channels, plan.chunk, parts, eps),
            **how,
        )
        ctx.save_for_backward(y, weight, bias, mask, mean, var, number)
        ctx.how = eps, relu, pool, real is not None, before
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, bias, mask, mean, var, number = ctx.saved_tensors
        eps, relu, pool, has_real, before = ctx.how
        clients, channels = weight.shape
        n, _, height, width = y.shape
        samples, slope = n // clients, slope.contiguous(memory_format=torch.channels_last)
        high, wide = height // pool, width // pool
        plan = _Plan.of(samples * high * wide, channels, clients, pool)
        parts = plan.grid[0]
        sums = torch.empty(clients, parts, 2, channels, dtype=torch.float32, device=y.device)
        how = dict(HAS_REAL=has_real, RELU=relu, POOL=pool, BP=plan.tile, BC=plan.block, num_warps=TILE[2])
        _sums_kernel[plan.grid](
            *(y, mask, slope, mean, var, weight, bias, sums, samples, height, width, high, wide),
            *(channels, plan.chunk, eps),
            **how,
        )
        to_y, to_weight, to_bias = torch.empty_like(y), torch.empty_like(weight), torch.empty_like(bias)
        high, wide = triton.cdiv(height, pool), triton.cdiv(width, pool)
        plan = _Plan.of(samples * high * wide, channels, clients, pool)
        _gradient_kernel[plan.grid](
            *(y, mask, slope, mean, var, number, weight, bias, sums, to_y, to_weight, to_bias),
            *(samples, height, width, high, wide, channels, plan.chunk, parts, eps),
            **(how | dict(BP=plan.tile, BC=plan.block)),
        )
        to_before = None if before is None else torch.zeros_like(before)
        return to_y, to_weight, to_bias, to_before, None, None, None, None


def normalise(
    y: Tensor,
    weight: Tensor,
    bias: Tensor,
    before: Tensor | None = None,
    real: Tensor | None = None,
    eps: float = 1e-5,
    relu: bool = False,
    pool: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maps [G·B, C, H, W] normalised per client and channel, times weight plus bias [G, C]; the mean and the (biased)
    variance [G, C] too. `before` is a bias that was left out of y: BatchNorm takes it away again, so it has no slope.
    """
    return _Normalise.apply(y, weight, bias, before, real, eps, relu, pool)  # type: ignore[no-any-return,no-untyped-call]
