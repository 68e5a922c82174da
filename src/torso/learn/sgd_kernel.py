"""Triton kernels for a step of SGD in one pass over a stacked tensor. Import this file only if `is_fast` is true."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torso.fast import dot_precision
from torso.learn.stacked import Rate

LARGE = 1 << 23  # a tensor with at least this many numbers gets a launch for itself


@triton.jit(do_not_specialize=["size"])
def _step_kernel(
    param, grad, velocity, active, rates, size, rate, momentum, decay,
    MOVES: tl.constexpr, HAS_VELOCITY: tl.constexpr, HAS_ACTIVE: tl.constexpr, HAS_RATES: tl.constexpr,
    EACH: tl.constexpr, LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move BLOCK numbers of one client's parameter. A client that is not active keeps weights and velocity."""
    client = tl.program_id(1)
    if LARGE:  # numbers are read four at a time, which is worth a kernel of its own
        size = tl.multiple_of(size, 16)
    if HAS_ACTIVE:  # noqa: SIM102 (a constant of the kernel, and a value)
        if tl.load(active + client) == 0:
            return
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, at = place < size, client.to(tl.int64) * size + place
    move = tl.load(grad + at, mask=inside)
    weight = tl.load(param + at, mask=inside)
    move += decay * weight
    if HAS_VELOCITY:
        move += momentum * tl.load(velocity + at, mask=inside)
        tl.store(velocity + at, move, mask=inside)
    if HAS_RATES:
        rate = tl.load(rates + client * EACH)
    if MOVES:
        tl.store(param + at, weight - rate * move, mask=inside)


def step(
    param: Tensor,
    grad: Tensor,
    velocity: Tensor | None,
    active: Tensor | None,
    rate: Rate | None,
    momentum: float,
    decay: float,
) -> None:
    """v ← μ v + (g + wd·w); w ← w − lr·v, in place, for [G, *] in float32. Without a rate only the velocity changes.

    A rate on the device is a tensor [] for all clients, or [G] with one for each client."""
    clients, size = param.shape[0], param[0].numel()
    block, each = 1024, rate if isinstance(rate, Tensor) else None
    _step_kernel[(triton.cdiv(size, block), clients)](
        *(param, grad, *(param if there is None else there for there in (velocity, active, each)), size),
        *(0.0 if rate is None or each is not None else rate, momentum, decay),
        **dict(MOVES=rate is not None, HAS_VELOCITY=velocity is not None, HAS_ACTIVE=active is not None),
        **dict(HAS_RATES=each is not None, EACH=each.ndim if each is not None else 0),
        **dict(LARGE=param.numel() >= LARGE and size % 16 == 0, BLOCK=block),
    )


@triton.jit
def _product_kernel(
    param, slope, x, active, rates, cast, batch, lines, size, rate, decay,
    HAS_ACTIVE: tl.constexpr, HAS_CAST: tl.constexpr, HAS_RATES: tl.constexpr, EACH: tl.constexpr,
    PRECISION: tl.constexpr, SAMPLES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Move a tile of one client's weights, HIGH outputs by WIDE inputs, by its part of the product."""
    client = tl.program_id(2)
    if HAS_ACTIVE:  # noqa: SIM102 (a constant of the kernel, and a value)
        if tl.load(active + client) == 0:
            return
    line = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    sample, of = tl.arange(0, SAMPLES), client.to(tl.int64)
    left = tl.load(
        slope + (of * batch + sample[None, :]) * lines + line[:, None],
        mask=(sample[None, :] < batch) & (line[:, None] < lines),
        other=0.0,
    )
    right = tl.load(
        x + (of * batch + sample[:, None]) * size + column[None, :],
        mask=(sample[:, None] < batch) & (column[None, :] < size),
        other=0.0,
    )
    move = tl.dot(left, right, input_precision=PRECISION)
    at = (of * lines + line[:, None]) * size + column[None, :]
    inside = (line[:, None] < lines) & (column[None, :] < size)
    weight = tl.load(param + at, mask=inside, other=0.0)
    if HAS_RATES:
        rate = tl.load(rates + client * EACH)
    weight = weight - rate * (move + decay * weight)
    tl.store(param + at, weight, mask=inside)
    if HAS_CAST:
        tl.store(cast + at, weight.to(cast.dtype.element_ty), mask=inside)


def step_by_product(
    param: Tensor,
    slope: Tensor,
    x: Tensor,
    active: Tensor | None,
    rate: Rate,
    decay: float,
    cast: Tensor | None = None,
) -> None:
    """w ← w − lr·(slopeᵀ x + wd·w), in place, for w [G, out, d] in float32, slope [G, B, out] and x [G, B, d] with few
    samples B. The gradient itself is never in memory. Rates as in `step`; `cast` gets the new weights in 16 bits."""
    clients, lines, size = param.shape
    slope, x, each = slope.contiguous(), x.contiguous(), rate if isinstance(rate, Tensor) else None
    samples, high, wide = max(triton.next_power_of_2(x.shape[1]), 16), 64, 128
    _product_kernel[(triton.cdiv(size, wide), triton.cdiv(lines, high), clients)](
        *(param, slope, x, *(param if there is None else there for there in (active, each, cast))),
        *(x.shape[1], lines, size, 0.0 if each is not None else rate, decay),
        **dict(HAS_ACTIVE=active is not None, HAS_CAST=cast is not None),
        **dict(HAS_RATES=each is not None, EACH=each.ndim if each is not None else 0),
        **dict(PRECISION=dot_precision(x), SAMPLES=samples, HIGH=high, WIDE=wide, num_warps=8),
    )


def step_many(
    params: list[Tensor], grads: list[Tensor], speeds: list[Tensor], rate: Rate, momentum: float, decay: float
) -> None:
    """As `step`, for many tensors if all clients are active. PyTorch's own fused optimiser takes few launches for
    it."""
    fused = torch.ops.aten._fused_sgd_
    (fused.tensor_lr if isinstance(rate, Tensor) else fused.default)(
        params,
        grads,
        speeds,
        weight_decay=decay,
        momentum=momentum,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
