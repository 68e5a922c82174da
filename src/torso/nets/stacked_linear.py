"""The product of a stacked linear layer whose gradients lie as its weights do.

Autograd makes the gradient of a transposed weight, and turning that around takes longer than the product itself. Going
back in 16 bits, the product is taken into float32 at once, where the device can.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        cast = weight.to(x.dtype)
        ctx.save_for_backward(x, cast)
        ctx.kinds = weight.dtype, None if bias is None else bias.dtype
        turned = cast.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.to(x.dtype).unsqueeze(1), x, turned)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, cast = ctx.saved_tensors
        of_weight, of_bias = ctx.kinds
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(slope, cast) if wanted[0] else None,
            _product(slope.transpose(1, 2), x, of_weight) if wanted[1] else None,
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
