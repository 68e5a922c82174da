"""BatchNorm by the statistics of each client's batch, with a 2×2 max-pool and ReLU (or ReLU6) in the same pass.

There are four kernels, each of which reads the map y once: statistics; normalisation, pool and ReLU; the two sums of
the backward pass; the gradient of y. The backward pass computes from y again which values the pool and ReLU let
through, so nothing else is kept. Sums are computed in parts of a client's pixels. A kernel that needs a sum adds the
parts up, in a fixed order.

G clients, B samples, C channels. A window is the pixels that become one output pixel: 2×2 with the pool, else one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from torso.errors import RequestError
from torso.nets.kernels.norm_kernels import (
    apply_kernel,
    gradient_kernel,
    join_kernel,
    known_kernel,
    statistics_kernel,
    sums_kernel,
)

_PARTS = 512  # parts of a sum, at most
_FEW = 32  # parts that a program adds up at its start, at most; more are joined before
_PROGRAMS = 12 * 132
TILE = (2048, 64, 4)  # values that a program works on at a time, their channels at most, and warps


def _few(sums: Tensor) -> Tensor:
    """Partial sums [G, parts, kinds, C], joined to at most `_FEW` parts."""
    clients, parts, kinds, channels = sums.shape
    if parts <= _FEW:
        return sums
    group = next(size for size in range(256, 0, -1) if parts % size == 0)
    if parts > 512 and group > 1:  # a client with thousands of samples: join in two steps
        return _few(_few(sums.view(-1, group, kinds, channels)).view(clients, -1, kinds, channels))
    joined = torch.empty(clients, 1, kinds, channels, dtype=sums.dtype, device=sums.device)
    join_kernel[(triton.cdiv(channels, 16), clients)](sums, joined, parts, channels, KINDS=kinds, BC=16, num_warps=1)
    return joined


class _Plan(NamedTuple):
    """How the work on a map is divided among programs."""

    grid: tuple[int, int, int]  # parts, blocks of channels, G
    chunk: int  # windows of a program
    tile: int  # windows that a program works on at a time
    block: int  # channels of a program

    @classmethod
    def of(cls, windows: int, channels: int, clients: int, pool: int) -> _Plan:
        """The plan for a client's windows. `pool`: the side of a window in pixels."""
        if windows * pool * pool * channels >= 2**31:
            raise RequestError("a client's batch makes a map of 2³¹ values or more. Choose a smaller train.batch_size")
        values, most, _ = TILE
        block = min(most, triton.next_power_of_2(channels))
        tile = values // block // pool // pool
        blocks = triton.cdiv(channels, block)
        parts = max(1, min(_PARTS, triton.cdiv(_PROGRAMS, blocks * clients), triton.cdiv(windows, tile)))
        chunk = triton.cdiv(triton.cdiv(windows, parts), tile) * tile
        return cls((triton.cdiv(windows, chunk), blocks, clients), chunk, tile, block)


def _count(y: Tensor, real: Tensor, clients: int, has_real: bool) -> Tensor:
    """The partial statistics [G, parts, 3, C] of a map: mean, squared deviation and number of values."""
    n, channels, height, width = y.shape
    plan = _Plan.of(n // clients * height * width, channels, clients, 1)
    sums = torch.empty(clients, plan.grid[0], 3, channels, dtype=torch.float32, device=y.device)
    statistics_kernel[plan.grid](
        *(y, real, sums, n // clients, height * width, channels, plan.chunk),
        **dict(HAS_REAL=has_real, BP=plan.tile, BC=plan.block, num_warps=TILE[2]),
    )
    return sums


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        before: Tensor | None,
        real: Tensor | None,
        sums: Tensor | None,
        eps: float,
        relu: bool,
        pool: int,
        cap: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        clients, channels = weight.shape
        n, _, height, width = y.shape
        samples, high, wide = n // clients, height // pool, width // pool
        y, weight, bias = y.contiguous(memory_format=torch.channels_last), weight.contiguous(), bias.contiguous()
        mask = weight if real is None else real.to(torch.float32).contiguous()
        sums = _few(_count(y, mask, clients, real is not None) if sums is None else sums)
        mean, var, number = torch.empty(3, clients, channels, dtype=torch.float32, device=y.device).unbind()
        like = (n, channels, high, wide)
        out = torch.empty(like, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
        plan = _Plan.of(samples * high * wide, channels, clients, pool)
        how = dict(HAS_REAL=real is not None, RELU=relu, CAP=cap, POOL=pool)
        apply_kernel[plan.grid](
            *(y, mask, sums, weight, bias, out, mean, var, number),
            *(samples, height, width, high, wide, channels, plan.chunk, sums.shape[1], eps),
            **how,
            **dict(BP=plan.tile, BC=plan.block, num_warps=TILE[2]),
        )
        ctx.save_for_backward(y, weight, bias, mask, mean, var, number)
        ctx.how = eps, pool, how, before
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, bias, mask, mean, var, number = ctx.saved_tensors
        eps, pool, how, before = ctx.how
        clients, channels = weight.shape
        n, _, height, width = y.shape
        samples, slope = n // clients, slope.contiguous(memory_format=torch.channels_last)
        high, wide = height // pool, width // pool
        plan = _Plan.of(samples * high * wide, channels, clients, pool)
        sums = torch.empty(clients, plan.grid[0], 2, channels, dtype=torch.float32, device=y.device)
        sums_kernel[plan.grid](
            *(y, mask, slope, mean, var, weight, bias, sums, samples, height, width, high, wide),
            *(channels, plan.chunk, eps),
            **how,
            **dict(BP=plan.tile, BC=plan.block, num_warps=TILE[2]),
        )
        sums = _few(sums)
        to_y, to_weight, to_bias = torch.empty_like(y), torch.empty_like(weight), torch.empty_like(bias)
        high, wide = triton.cdiv(height, pool), triton.cdiv(width, pool)
        plan = _Plan.of(samples * high * wide, channels, clients, pool)
        gradient_kernel[plan.grid](
            *(y, mask, slope, mean, var, number, weight, bias, sums, to_y, to_weight, to_bias),
            *(samples, height, width, high, wide, channels, plan.chunk, sums.shape[1], eps),
            **how,
            **dict(BP=plan.tile, BC=plan.block, num_warps=TILE[2]),
        )
        to_before = None if before is None else torch.zeros_like(before)
        return to_y, to_weight, to_bias, to_before, *[None] * 6


def normalise(
    y: Tensor,
    weight: Tensor,
    bias: Tensor,
    before: Tensor | None = None,
    real: Tensor | None = None,
    sums: Tensor | None = None,
    eps: float = 1e-5,
    relu: bool = False,
    pool: int = 1,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maps [G·B, C, H, W] normalised per client and channel, times weight plus bias [G, C], and their mean and (biased)
    variance [G, C].

    `before`: a bias that was left out of y; BatchNorm would subtract it again, so its gradient is zero. `sums`: partial
    statistics of y, if they are known. `pool`: the side of the max-pool. `cap`: the largest value that ReLU lets
    through; 0: no limit.
    """
    return _Normalise.apply(y, weight, bias, before, real, sums, eps, relu, pool, cap)  # type: ignore[no-any-return,no-untyped-call]


def by_known(
    y: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor,
    before: Tensor | None = None,
    eps: float = 1e-5,
    relu: bool = False,
    pool: int = 1,
    cap: float = 0.0,
) -> Tensor:
    """Maps normalised as in `normalise`, but by known statistics [G, C], such as running ones. It has no gradient.

    `before` [G, C]: a bias that was left out of y."""
    (clients, channels), (n, _, height, width) = weight.shape, y.shape
    if clients == 1 and n > 1 and y.numel() >= 2**31:  # addresses within a client have 32 bits
        return torch.cat([by_known(half, mean, var, weight, bias, before, eps, relu, pool, cap) for half in y.chunk(2)])
    y, high, wide = y.contiguous(memory_format=torch.channels_last), height // pool, width // pool
    tensors = [t.contiguous() for t in (mean, var, mean if before is None else before, weight, bias)]
    out = torch.empty((n, channels, high, wide), dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
    plan = _Plan.of(n // clients * high * wide, channels, clients, pool)
    grid = triton.cdiv(n // clients * high * wide, plan.tile), *plan.grid[1:]
    known_kernel[grid](
        *(y, *tensors, out, n // clients, height, width, high, wide, channels, eps),
        **dict(HAS_BEFORE=before is not None, RELU=relu, CAP=cap, POOL=pool),
        **dict(BP=plan.tile, BC=plan.block, num_warps=TILE[2]),
    )
    return out
