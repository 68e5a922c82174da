"""Kernels for maps of networks without BatchNorm: a 2×2 max-pool with ReLU, and dropout.

The backward pass computes the masks again, so only the input or the keys are kept. N samples, C channels; maps are
channels-last in memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def _first_largest(best, value, place, at: tl.constexpr):
    """The larger of two values and its position: the first one if they are equal, and any NaN wins."""
    wins = (value > best) | (value != value)  # noqa: PLR0124 (NaN)
    return tl.where(wins, value, best), tl.where(wins, at, place)


@triton.jit(do_not_specialize=["total"])
def _pool_kernel(
    x, slope, out, total,
    height: tl.constexpr, width: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    channels: tl.constexpr, LONG: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest value of each window after ReLU, or with BACK the gradient of its four values, for a range of
    windows and channels.

    Sizes are constants, and positions have 32 bits if that is enough. Otherwise divisions would take longer than the
    loads."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if LONG:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    channel, window = place % channels, place // channels
    column, line = window % wide, window // wide
    row, sample = line % high, line // high
    corner = ((sample * height + 2 * row) * width + 2 * column) * channels + channel
    right, below = channels, width * channels
    best = tl.load(x + corner, mask=inside, other=0).to(tl.float32)
    which = tl.zeros([BLOCK], tl.int32)
    best, which = _first_largest(best, tl.load(x + corner + right, mask=inside, other=0).to(tl.float32), which, 1)
    best, which = _first_largest(best, tl.load(x + corner + below, mask=inside, other=0).to(tl.float32), which, 2)
    best, which = _first_largest(
        best, tl.load(x + corner + below + right, mask=inside, other=0).to(tl.float32), which, 3
    )
    stopped = best <= 0
    if BACK:
        grad = tl.where(stopped, 0.0, tl.load(slope + place, mask=inside, other=0).to(tl.float32))
        kind = out.dtype.element_ty
        tl.store(out + corner, tl.where(which == 0, grad, 0.0).to(kind), mask=inside)
        tl.store(out + corner + right, tl.where(which == 1, grad, 0.0).to(kind), mask=inside)
        tl.store(out + corner + below, tl.where(which == 2, grad, 0.0).to(kind), mask=inside)
        tl.store(out + corner + below + right, tl.where(which == 3, grad, 0.0).to(kind), mask=inside)
    else:
        tl.store(out + place, tl.where(stopped, 0.0, best).to(out.dtype.element_ty), mask=inside)


def _pool(x: Tensor, slope: Tensor, out: Tensor, back: bool) -> None:
    samples, channels, height, width = x.shape
    high, wide, block = height // 2, width // 2, 1024
    total = samples * channels * high * wide
    _pool_kernel[(triton.cdiv(total, block),)](
        *(x, slope, out, total, height, width, high, wide),
        **dict(channels=channels, LONG=x.numel() >= 1 << 31, BACK=back, BLOCK=block),
    )


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        samples, channels, height, width = x.shape
        shape = samples, channels, height // 2, width // 2
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        _pool(x, out, out, back=False)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        odd = x.shape[2] % 2 or x.shape[3] % 2  # the last row or column is in no window
        out = torch.zeros_like(x) if odd else torch.empty_like(x)
        _pool(x, slope.contiguous(memory_format=torch.channels_last), out, back=True)
        return out


def pooled(x: Tensor) -> Tensor:
    """The 2×2 max-pool of maps [N, C, H, W], and ReLU of it."""
    return _Pooled.apply(x)  # type: ignore[no-any-return,no-untyped-call]


@triton.jit
def _mixed(z):
    """splitmix64 as `torso.randomness` defines it."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    return (z >> 1) & 0x7FFFFFFFFFFFFFFF


@triton.jit(do_not_specialize=["samples", "size", "words", "layer", "least"])
def _drop_kernel(x, keys, out, samples, size, words, layer, least, scale, BLOCK: tl.constexpr):
    """Dropout of a part of one sample. A hash makes four random numbers of 15 bits, as dropout.py defines it."""
    sample = tl.program_id(0)
    own = tl.load(keys + sample // samples)
    mine = _mixed(own + (layer + 1).to(tl.int64) * -7046029254386353131)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    counter = (sample % samples).to(tl.int64) * words + word + 1
    bits = _mixed(mine + counter * -7046029254386353131)
    lane = tl.arange(0, 4)
    number = (bits[:, None] >> (15 * lane)[None, :]) & 0x7FFF
    at = word[:, None] * 4 + lane[None, :]
    inside, there = at < size, sample.to(tl.int64) * size + at
    value = tl.load(x + there, mask=inside, other=0).to(tl.float32)
    value = value * tl.where(number >= least, 1.0, 0.0) * scale
    tl.store(out + there, value.to(out.dtype.element_ty), mask=inside)


def _drop(x: Tensor, keys: Tensor, layer: int, least: int, scale: float) -> Tensor:
    """x after dropout: maps [G·B, C, H, W] or rows [G, B, d], with one sample after the other in memory."""
    out, clients = torch.empty_like(x), len(keys)
    rows = x.shape[0] if x.ndim == 4 else x.shape[0] * x.shape[1]
    size = x.numel() // rows
    words, block = -(-size // 4), 256
    _drop_kernel[(rows, triton.cdiv(words, block))](
        x, keys, out, rows // clients, size, words, layer, least, scale, BLOCK=block
    )
    return out


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, layer: int, least: int, scale: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.how = layer, least, scale
        return _drop(_as_it_lies(x), keys, layer, least, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None]:
        (keys,) = ctx.saved_tensors
        return _drop(_as_it_lies(slope), keys, *ctx.how), None, None, None, None


def _as_it_lies(x: Tensor) -> Tensor:
    """x in the memory layout of the kernel: channels-last for maps."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


def dropped(x: Tensor, keys: Tensor, layer: int, least: int, scale: float) -> Tensor:
    """Dropout of maps [G·B, C, H, W] or rows [G, B, d]: a value is 0 if its 15 random bits are below `least`, and
    multiplied by `scale` otherwise. `layer`: the number of the dropout layer."""
    return _Dropped.apply(x, keys.contiguous(), layer, least, scale)  # type: ignore[no-any-return,no-untyped-call]
