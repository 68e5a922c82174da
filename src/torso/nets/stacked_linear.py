"""The product of a stacked linear layer whose gradients lie as its weights do.

Autograd makes the gradient of a transposed weight, and turning that around takes longer than the product itself. Going
back in 16 bits, the product is taken into float32 at once, where the device can. Who steps by the gradient at once may
have it as the two matrices that it is the product of: with few samples these are much smaller than the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Factors(NamedTuple):
    """A gradient [G, out, d] as slope [G, B, out], transposed, times x [G, B, d]."""

    slope: Tensor
    x: Tensor

    def product(self, kind: torch.dtype) -> Tensor:
        return _product(self.slope.transpose(1, 2), self.x, kind)


class _Late(NamedTuple):
    factors: dict[int, list[Factors]]
    casts: Casts


Casts = dict[int, Tensor]
"""Weights in 16 bits, by the address of the weights."""
_late: ContextVar[_Late | None] = ContextVar("gradients left as factors", default=None)


@contextmanager
def left_as_factors(weights: Iterable[Tensor], casts: Casts | None = None) -> Iterator[dict[int, list[Factors]]]:
    """Inside, gradients of these weights come as factors, one for each use of a weight, found by its address; what
    autograd gives for these uses is zero, one number expanded. `casts` are used instead of the weights, and new ones
    are noted there: whoever moves a weight moves its cast, too."""
    late = _Late({weight.data_ptr(): [] for weight in weights}, {} if casts is None else casts)
    token = _late.set(late)
    try:
        yield late.factors
    finally:
        _late.reset(token)


def _cast(weight: Tensor, kind: torch.dtype, late: _Late | None) -> Tensor:
    place = weight.data_ptr()
    if late is None or place not in late.factors or weight.dtype == kind:
        return weight.to(kind)
    if place not in late.casts or late.casts[place].dtype != kind:
        late.casts[place] = weight.to(kind)
    return late.casts[place]


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        late = _late.get()  # here: going back is another thread's work
        cast = _cast(weight, x.dtype, late)
        ctx.save_for_backward(x, cast)
        ctx.kinds = weight.dtype, None if bias is None else bias.dtype
        ctx.late = None if late is None else late.factors.get(weight.data_ptr())
        turned = cast.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.to(x.dtype).unsqueeze(1), x, turned)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, cast = ctx.saved_tensors
        of_weight, of_bias = ctx.kinds
        wanted, move = ctx.needs_input_grad, None
        if wanted[1] and ctx.late is not None:
            ctx.late.append(Factors(slope, x))
            move = torch.zeros((), dtype=of_weight, device=x.device).expand(cast.shape)
        elif wanted[1]:
            move = _product(slope.transpose(1, 2), x, of_weight)
        return (
            torch.bmm(slope, cast) if wanted[0] else None,
            move,
            slope.sum(dim=1, dtype=of_bias) if wanted[2] else None,
        )


def _product(left: Tensor, right: Tensor, kind: torch.dtype) -> Tensor:
    if left.dtype == kind:
        return torch.bmm(left, right)
    if left.is_cuda and kind == torch.float32:
        wide: Tensor = torch.ops.aten.bmm.dtype(left, right, kind)
        return wide
    return torch.bmm(left, right).to(kind)


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [G, B, d] times weights [G, out, d], and biases [G, out], in the dtype of x."""
    return _Stacked.apply(x, weight, bias)  # type: ignore[no-any-return,no-untyped-call]
