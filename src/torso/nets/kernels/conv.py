"""Convolutions whose weights differ from client to client, as matrix products, with their gradients.

G clients, B samples; in, out: channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from torso.nets.kernels import boxes, gather


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        counted: bool,
        real: Tensor | None,
        spare: int,
    ) -> tuple[Tensor, Tensor | None]:
        clients, out_c, _, kernel, _ = weight.shape
        x = x.contiguous(memory_format=torch.channels_last)
        ready = weight.permute(0, 3, 4, 1, 2).to(x.dtype).contiguous()
        bias = None if bias is None else bias.contiguous()  # one model for all clients is an expanded view
        height, width = ((side + 2 * padding + spare - kernel) // stride + 1 for side in x.shape[2:])
        like, boxed, sums = (x.shape[0], out_c, height, width), boxes.boxable(x, out_c, stride) and spare == 0, None
        if boxed:
            out, sums = boxes.convolve(x, ready, bias, like, padding, counted=counted, real=real)
        else:
            out = gather.convolve(x, ready, bias, like, stride, padding, back=False)
        ctx.save_for_backward(x, ready)
        ctx.how = clients, kernel, stride, padding, bias is not None, boxed
        if sums is not None:
            ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        x, ready = ctx.saved_tensors
        clients, kernel, stride, padding, has_bias, boxed = ctx.how
        slope = slope.contiguous(memory_format=torch.channels_last)
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            if boxed:
                to_x, _ = boxes.convolve(slope, ready, None, tuple(x.shape), padding, back=True)
            else:
                to_x = gather.convolve(slope, ready, None, tuple(x.shape), stride, padding, back=True)
        if ctx.needs_input_grad[1]:
            if boxed:
                to_weight = boxes.weight_gradient(x, slope, clients, kernel, padding)
            else:
                to_weight = gather.weight_gradient(x, slope, clients, kernel, stride, padding)
        if has_bias and ctx.needs_input_grad[2]:
            to_bias = slope.view(clients, -1, *slope.shape[1:]).sum((1, 3, 4), dtype=torch.float32)
        return to_x, to_weight, to_bias, *[None] * 5


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    counted: bool = False,
    real: Tensor | None = None,
    spare: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Maps [G·B, in, H, W] through square kernels [G, out, in, K, K] (float32) and biases [G, out].

    `counted`: with statistics for `norm.normalise` over `real` samples [G, B], where the kernel can take them. `spare`:
    zeros below and on the right beyond `padding` on every side."""
    kernel, values = weight.shape[-1], weight[0, 0].numel()
    if x.shape[1] < 16 and values <= 64 and not x.requires_grad:  # images: few channels make a poor matrix product
        wide = max(16, 1 << (values - 1).bit_length())
        x = gather.patches(x, kernel, stride, padding, wide, spare)
        weight = F.pad(weight.permute(0, 1, 3, 4, 2).flatten(2), (0, wide - values))[..., None, None]
        stride, padding, spare = 1, 0, 0
    real = None if real is None else real.float().contiguous()
    return _Convolution.apply(x, weight, bias, stride, padding, counted, real, spare)  # type: ignore[no-any-return,no-untyped-call]


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        clients, out_c, in_c = weight.shape
        n, _, height, width = x.shape
        x = x.contiguous(memory_format=torch.channels_last)
        rows = x.permute(0, 2, 3, 1).reshape(clients, -1, in_c)
        ready = weight.to(x.dtype)
        ctx.save_for_backward(rows, ready)
        return torch.bmm(rows, ready.mT).view(n, height, width, out_c).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows, ready = ctx.saved_tensors
        n, out_c, height, width = slope.shape
        slope = slope.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).reshape(len(rows), -1, out_c)
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(slope, ready).view(n, height, width, -1).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            to_weight = _product(slope.mT, rows)
        return to_x, to_weight


def _product(a: Tensor, b: Tensor) -> Tensor:
    """[G, m, k] × [G, k, n] in float32."""
    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b).float()


def pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """Maps [G·B, in, H, W] through matrices [G, out, in] (float32): a product per client."""
    return _Pointwise.apply(x, weight)  # type: ignore[no-any-return,no-untyped-call]
