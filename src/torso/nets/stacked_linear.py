"""The product of a stacked linear layer, with a weight gradient that has the memory layout of the weight.

Autograd would make the gradient of the transposed weight, and transposing it takes longer than the product itself. In
the backward pass of a layer in 16 bits, the product is computed into float32 directly, if the device can. An optimiser
that uses the gradient right away can get it as its two factors (`left_as_factors`): with few samples these are much
smaller than the weight.
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
    """The gradient [G, out, d] of a weight as its two factors: the transposed slope times x."""

    slope: Tensor  # [G, B, out], the gradient of the output
    x: Tensor  # [G, B, d]

    def product(self, kind: torch.dtype) -> Tensor:
        """The gradient [G, out, d] itself, in dtype `kind`."""
        return _product(self.slope.transpose(1, 2), self.x, kind)


class _Late(NamedTuple):
    """The state of `left_as_factors`."""

    factors: dict[int, list[Factors]]  # by the address of a weight: one entry for each use of the weight
    casts: Casts


Casts = dict[int, Tensor]
"""Weights in 16 bits, by the address of the weights."""
_late: ContextVar[_Late | None] = ContextVar("gradients left as factors", default=None)


@contextmanager
def left_as_factors(weights: Iterable[Tensor], casts: Casts | None = None) -> Iterator[dict[int, list[Factors]]]:
    """A context in which the gradients of these weights are collected as factors, by the address of the weight.

    There is one entry for each use of a weight. The gradient that autograd gives for such a use is zero, one number
    expanded. `casts`: copies of weights in 16 bits that are used instead of the weights; new ones are added. A caller
    that updates a weight must also update its cast."""
    late = _Late({weight.data_ptr(): [] for weight in weights}, {} if casts is None else casts)
    token = _late.set(late)
    try:
        yield late.factors
    finally:
        _late.reset(token)


def _cast(weight: Tensor, kind: torch.dtype, late: _Late | None) -> Tensor:
    """A weight in dtype `kind`, from the casts if there are any."""
    address = weight.data_ptr()
    if late is None or address not in late.factors or weight.dtype == kind:
        return weight.to(kind)
    if address not in late.casts or late.casts[address].dtype != kind:
        late.casts[address] = weight.to(kind)
    return late.casts[address]


class _Stacked(torch.autograd.Function):
    """x [G, B, d] times weights [G, out, d], and biases [G, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        late = _late.get()  # read here, because the backward pass runs in another thread
        cast = _cast(weight, x.dtype, late)
        ctx.save_for_backward(x, cast)
        ctx.kinds = weight.dtype, None if bias is None else bias.dtype
        ctx.late = None if late is None else late.factors.get(weight.data_ptr())
        transposed = cast.transpose(1, 2)
        if bias is None:
            return torch.bmm(x, transposed)
        return torch.baddbmm(bias.to(x.dtype).unsqueeze(1), x, transposed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, cast = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.kinds
        of_x, of_weight, of_bias = ctx.needs_input_grad
        weight_grad = None
        if of_weight and ctx.late is not None:
            ctx.late.append(Factors(slope, x))
            weight_grad = torch.zeros((), dtype=weight_dtype, device=x.device).expand(cast.shape)
        elif of_weight:
            weight_grad = _product(slope.transpose(1, 2), x, weight_dtype)
        x_grad = torch.bmm(slope, cast) if of_x else None
        bias_grad = slope.sum(dim=1, dtype=bias_dtype) if of_bias else None
        return x_grad, weight_grad, bias_grad


def _product(left: Tensor, right: Tensor, kind: torch.dtype) -> Tensor:
    """The product of two stacks of matrices in dtype `kind`, computed into float32 directly if the device can."""
    if left.dtype == kind:
        return torch.bmm(left, right)
    if left.is_cuda and kind == torch.float32:
        wide: Tensor = torch.ops.aten.bmm.dtype(left, right, kind)
        return wide
    return torch.bmm(left, right).to(kind)


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [G, B, d] times weights [G, out, d], and biases [G, out], in the dtype of x."""
    return _Stacked.apply(x, weight, bias)  # type: ignore[no-any-return,no-untyped-call]
