"""One step of SGD with momentum in one pass over a stacked tensor, in Triton; import only where `is_fast`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torso.learn.stacked import Rate

LARGE = 1 << 23  # numbers of a tensor that are worth a launch of their own


@triton.jit(do_not_specialize=["size"])
def _step_kernel(
    param, grad, velocity, active, rates, size, rate, momentum, decay,
    MOVES: tl.constexpr, HAS_VELOCITY: tl.constexpr, HAS_ACTIVE: tl.constexpr, HAS_RATES: tl.constexpr,
    EACH: tl.constexpr, LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A stretch of one client's parameter. A client that is not active keeps weights and velocity."""
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
    """v ← μ v + (g + wd·w); w ← w − lr·v, in place, for [G, *] in float32; no rate: only the velocity moves.

    A rate on the device is that of all clients [], or has one for each of them [G]."""
    clients, size = param.shape[0], param[0].numel()
    block, each = 1024, rate if isinstance(rate, Tensor) else None
    _step_kernel[(triton.cdiv(size, block), clients)](
        *(param, grad, *(param if there is None else there for there in (velocity, active, each)), size),
        *(0.0 if rate is None or each is not None else rate, momentum, decay),
        **dict(MOVES=rate is not None, HAS_VELOCITY=velocity is not None, HAS_ACTIVE=active is not None),
        **dict(HAS_RATES=each is not None, EACH=each.ndim if each is not None else 0),
        **dict(LARGE=param.numel() >= LARGE and size % 16 == 0, BLOCK=block),
    )


def step_many(
    params: list[Tensor], grads: list[Tensor], speeds: list[Tensor], rate: Rate, momentum: float, decay: float
) -> None:
    """The same for many tensors and clients that are all active: PyTorch's own optimiser does it in few launches."""
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
