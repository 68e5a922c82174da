"""The kernels of norm.py: statistics; normalisation, pool and ReLU; the sums of the backward pass; the gradient."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def real_pixels(real, client, samples, sample, good, HAS_REAL: tl.constexpr):
    """1 for pixels of real samples, 0 for padding and for pixels beyond the end."""
    if HAS_REAL:
        return tl.load(real + client * samples + sample, mask=good, other=0.0)
    return good.to(tl.float32)


@triton.jit
def _some_parts(sums, client, first, parts, channels, c, good_c, WHICH: tl.constexpr, KINDS: tl.constexpr):
    """16 parts [16, BC] of one kind of partial sum, from the first on; zero beyond the number of parts."""
    part = first + tl.arange(0, 16)
    at = ((client * parts + part) * KINDS + WHICH)[:, None] * channels + c[None, :]
    return tl.load(sums + at, mask=(part < parts)[:, None] & good_c[None, :], other=0.0)


@triton.jit
def _statistics(sums, client, parts, channels, c, good_c):
    """The number of values, mean and variance over all parts."""
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
def statistics_kernel(
    y, real, sums, samples, size, channels, chunk, HAS_REAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The mean, squared deviation and number of values of a chunk.

    Deviations are computed from the mean of the chunk's first pixels, so that no digits are lost if the mean is far
    from zero."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, pixels = c < channels, samples * size
    y += client.to(tl.int64) * pixels * channels
    first = part * chunk + tl.arange(0, BP)
    last = tl.minimum((part + 1) * chunk, pixels)
    good = first < last
    counts = real_pixels(real, client, samples, first // size, good, HAS_REAL)
    value = tl.load(y + first[:, None] * channels + c[None, :], mask=good[:, None] & good_c[None, :], other=0.0)
    value = tl.where(counts[:, None] > 0, value.to(tl.float32), 0.0)
    about = tl.sum(value, 0) / tl.maximum(tl.sum(counts, 0), 1.0)
    total, square = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    number = tl.zeros((BP,), tl.float32)
    for start in range(part * chunk, last, BP):
        pixel = start + tl.arange(0, BP)
        good = pixel < last
        counts = real_pixels(real, client, samples, pixel // size, good, HAS_REAL)
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
def _sums_of(sums, client, parts, channels, c, good_c):
    """Both sums of the backward pass over all parts: of the slope, and of slope times normalised value."""
    plain, tilted = tl.zeros_like(c).to(tl.float32), tl.zeros_like(c).to(tl.float32)
    for first in range(0, parts, 16):
        plain += tl.sum(_some_parts(sums, client, first, parts, channels, c, good_c, 0, 2), 0)
        tilted += tl.sum(_some_parts(sums, client, first, parts, channels, c, good_c, 1, 2), 0)
    return plain, tilted


@triton.jit(do_not_specialize=["parts"])
def join_kernel(sums, joined, parts, channels, KINDS: tl.constexpr, BC: tl.constexpr):
    """Join all parts of partial sums into one. KINDS: 3 for statistics, 2 for the sums of the backward pass."""
    client, c = tl.program_id(1), tl.program_id(0) * BC + tl.arange(0, BC)
    good_c, at = c < channels, joined + client * KINDS * channels + tl.program_id(0) * BC + tl.arange(0, BC)
    if KINDS == 3:
        n, mean, var = _statistics(sums, client, parts, channels, c, good_c)
        tl.store(at, mean, mask=good_c)
        tl.store(at + channels, var * n, mask=good_c)
        tl.store(at + 2 * channels, n, mask=good_c)
    else:
        plain, tilted = _sums_of(sums, client, parts, channels, c, good_c)
        tl.store(at, plain, mask=good_c)
        tl.store(at + channels, tilted, mask=good_c)


@triton.jit
def _window(tile, samples, high, wide, height, width, BP: tl.constexpr, POOL: tl.constexpr):
    """For BP windows: the pixel of the upper left corner, the sample, row and column, and whether the window exists."""
    window = tile + tl.arange(0, BP)
    column, row, sample = window % wide, window // wide % high, window // (wide * high)
    return (sample * height + row * POOL) * width + column * POOL, sample, row, column, sample < samples


@triton.jit
def _normal(y, at, channels, c, mask, mean, scale, bias, counts):
    """The deviations of values from the mean, zero for padding, and the normalised values."""
    value = tl.load(y + at[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
    far = tl.where(counts[:, None] > 0, value - mean[None, :], 0.0)
    return far, far * scale[None, :] + bias[None, :]


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide", "chunk", "parts"])
def apply_kernel(
    y, real, sums, weight, bias, out, mean_out, var_out, number_out, samples, height, width, high, wide, channels,
    chunk, parts, eps,
    HAS_REAL: tl.constexpr, RELU: tl.constexpr, CAP: tl.constexpr, POOL: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Join the parts of the statistics, and apply normalisation, pool and ReLU to a chunk of windows.

    The program of the first chunk stores the statistics."""
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
        counts = real_pixels(real, client, samples, sample, good, HAS_REAL)
        mask = good[:, None] & good_c[None, :]
        _far, best = _normal(y, at, channels, c, mask, mean, scale, shift, counts)
        if POOL == 2:
            for k in tl.static_range(1, 4):
                step = (k // 2) * width + k % 2
                _far, z = _normal(y, at + step, channels, c, mask, mean, scale, shift, counts)
                best = tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL)
        if RELU:  # NaN stays, as in PyTorch: a GPU's own maximum of NaN and 0 is 0, which would hide a diverged run
            best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if CAP > 0:
            best = tl.minimum(best, CAP, propagate_nan=tl.PropagateNan.ALL)
        window = start + tl.arange(0, BP)
        tl.store(out + window[:, None] * channels + c[None, :], best.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide"])
def known_kernel(
    y, mean, var, before, weight, bias, out, samples, height, width, high, wide, channels, eps,
    HAS_BEFORE: tl.constexpr, RELU: tl.constexpr, CAP: tl.constexpr, POOL: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """As `apply_kernel`, but by known statistics, with a tile of windows for each program."""
    client = tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, own = c < channels, client * channels + c
    centre = tl.load(mean + own, mask=good_c, other=0.0)
    if HAS_BEFORE:
        centre -= tl.load(before + own, mask=good_c, other=0.0)
    scale = tl.load(weight + own, mask=good_c, other=0.0)
    scale = scale / tl.sqrt(tl.load(var + own, mask=good_c, other=1.0) + eps)
    shift = tl.load(bias + own, mask=good_c, other=0.0)
    y += client.to(tl.int64) * samples * height * width * channels
    out += client.to(tl.int64) * samples * high * wide * channels
    window = tl.program_id(0) * BP + tl.arange(0, BP)
    at, _sample, _row, _column, good = _window(tl.program_id(0) * BP, samples, high, wide, height, width, BP, POOL)
    counts, mask = good.to(tl.float32), good[:, None] & good_c[None, :]
    _far, best = _normal(y, at, channels, c, mask, centre, scale, shift, counts)
    if POOL == 2:
        for k in tl.static_range(1, 4):
            step = (k // 2) * width + k % 2
            _far, z = _normal(y, at + step, channels, c, mask, centre, scale, shift, counts)
            best = tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL)
    if RELU:
        best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if CAP > 0:
        best = tl.minimum(best, CAP, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + window[:, None] * channels + c[None, :], best.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide", "chunk"])
def sums_kernel(
    y, real, slope, mean, var, weight, bias, sums, samples, height, width, high, wide, channels, chunk, eps,
    HAS_REAL: tl.constexpr, RELU: tl.constexpr, CAP: tl.constexpr, POOL: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Σ slope and Σ slope · normalised value over a chunk of windows, for values that the pool and ReLU let through."""
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
        counts = real_pixels(real, client, samples, sample, good, HAS_REAL)
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
        if CAP > 0:
            passes = passes & (best < CAP)
        came = tl.where(passes, came, 0.0)
        plain += came
        tilted += came * far
    sums += (client * tl.num_programs(0) + part) * 2 * channels
    tl.store(sums + c, tl.sum(plain, 0), mask=good_c)
    tl.store(sums + channels + c, tl.sum(tilted, 0) / spread, mask=good_c)


@triton.jit(do_not_specialize=["samples", "height", "width", "high", "wide", "chunk", "parts"])
def gradient_kernel(
    y, real, slope, mean, var, number, weight, bias, sums, to_y, to_weight, to_bias, samples, height, width, high,
    wide, channels, chunk, parts, eps,
    HAS_REAL: tl.constexpr, RELU: tl.constexpr, CAP: tl.constexpr, POOL: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The gradient scale · (slope − mean slope − x̂ · mean of slope · x̂) of each pixel; windows at the edge may be
    incomplete. The program of the first chunk stores the gradients of weight and bias."""
    part, client = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    good_c, own = c < channels, client * channels + c
    centre = tl.load(mean + own, mask=good_c, other=0.0)
    spread = tl.sqrt(tl.load(var + own, mask=good_c, other=1.0) + eps)
    n = tl.load(number + own, mask=good_c, other=1.0)
    scale = tl.load(weight + own, mask=good_c, other=0.0) / spread
    shift = tl.load(bias + own, mask=good_c, other=0.0)
    plain, tilted = _sums_of(sums, client, parts, channels, c, good_c)
    if part == 0:
        tl.store(to_bias + own, plain, mask=good_c)
        tl.store(to_weight + own, tilted, mask=good_c)
    level, lean = plain / n, tilted / (n * spread)
    y += client.to(tl.int64) * samples * height * width * channels
    to_y += client.to(tl.int64) * samples * height * width * channels
    slope += client.to(tl.int64) * samples * (height // POOL) * (width // POOL) * channels
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, samples * high * wide), BP):
        at, sample, row, column, good = _window(start, samples, high, wide, height, width, BP, POOL)
        counts = real_pixels(real, client, samples, sample, good, HAS_REAL)
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
        if CAP > 0:
            passes = passes & (best < CAP)
        came = tl.where(passes, came, 0.0)
        for k in tl.static_range(POOL * POOL):
            there = whole
            if POOL == 2:
                there = whole & ((row * 2 + k // 2 < height) & (column * 2 + k % 2 < width))[:, None]
            step = (k // 2) * width + k % 2
            if k > 0:  # loaded again and not kept: it comes from the cache, and registers are scarce
                far, _z = _normal(y, at + step, channels, c, there, centre, scale, shift, counts)
            slant = tl.where(which == k, came, 0.0) - level[None, :] - far * lean[None, :]
            slant = tl.where(counts[:, None] > 0, slant * scale[None, :], 0.0)
            tl.store(to_y + (at + step)[:, None] * channels + c[None, :], slant.to(to_y.dtype.element_ty), mask=there)
