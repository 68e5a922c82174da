"""Convolutions with different weights for each client, and their gradients, by the fastest way for the layer.

G clients, B samples; in, out: channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from torso.fast import dot_precision
from torso.nets.kernels import apart, boxes, columns, gather, lines, taps, turned
from torso.nets.kernels.totals import totals
from torso.nets.kernels.ways import Pass, Way, layer_of, way


def _precision(x: Tensor) -> str:
    """The precision of products with x, as `ways.Layer` names it."""
    return "bf16" if x.dtype == torch.bfloat16 else dot_precision(x)


@dataclass(frozen=True)
class Shape:
    """The sizes of a convolution of G clients, and the way of each of its passes."""

    clients: int
    kernel: int
    stride: int
    padding: int
    before: tuple[int, ...]  # shape of the input, [G·B, in, H, W]
    after: tuple[int, ...]  # shape of the output
    forward: Way
    back: Way
    weight: Way

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, stride: int, padding: int, spare: int) -> Shape:
        """The shape of a convolution of x. `spare`: see `convolution`."""
        clients, out_c, in_c, kernel, _ = weight.shape
        height, width = ((side + 2 * padding + spare - kernel) // stride + 1 for side in x.shape[2:])
        boxed, precision = boxes.boxable(x, out_c, kernel, stride, padding) and spare == 0, _precision(x)

        def chosen(kind: Pass) -> Way:
            tall, broad = (x.shape[2], x.shape[3]) if kind == "back" else (height, width)
            sizes = in_c, out_c, tall, broad, kernel, stride, padding, spare
            return way(kind, layer_of(kind, *sizes, precision, boxed, x.shape[0] // clients))

        after = (x.shape[0], out_c, height, width)
        ways = chosen("forward"), chosen("back"), chosen("weight")
        return cls(clients, kernel, stride, padding, tuple(x.shape), after, *ways)

    def columns(self, x: Tensor) -> Tensor:
        """The columns of the input x (see columns.py)."""
        return columns.write_down(x, self.kernel, self.stride, self.padding, *self.after[2:])


def ready(weight: Tensor, dtype: torch.dtype, by: Way, back: bool = False) -> Tensor:
    """Weights [G, out, in, K, K] in the order in which a way reads them.

    That is [G, K, K, out, in]; for columns [G, out, in·K·K], and in the backward pass [G, out, K·K·in]."""
    if by.name == "columns":
        return taps.spread_rows(weight, dtype) if back and weight.shape[-1] > 1 else weight.flatten(2).to(dtype)
    if weight.shape[-1] == 1:
        return weight.to(dtype).permute(0, 3, 4, 1, 2).contiguous()
    return taps.spread(weight, dtype)


def forward(
    x: Tensor,
    seen: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    shape: Shape,
    counted: bool = False,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output, and its statistics if they are asked for and the kernel can compute them. `seen`: the columns, if
    that is the way."""
    by, like = shape.forward, shape.after
    if by.name == "turned" and by.how is not None:
        given = x, weight, bias, like, shape.padding, by.how
        return turned.convolve(*given, counted=counted, real=real, stride=shape.stride)
    if by.name == "columns" and seen is not None:
        return columns.convolve(seen, weight, bias, like), None
    if by.name == "box":
        return boxes.convolve(x, weight, bias, like, shape.padding, counted=counted, real=real)
    return gather.convolve(x, weight, bias, like, shape.stride, shape.padding, back=False), None


def input_gradient(slope: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """The gradient [G·B, in, H, W] of the input; the weight is in the order of `ready`."""
    by, like = shape.back, shape.before
    if by.name == "turned" and by.how is not None:
        if shape.stride == 2:
            return apart.input_gradient(slope, weight, like, by.how)
        return turned.convolve(slope, weight, None, like, shape.padding, by.how, back=True)[0]
    if by.name == "columns":
        return columns.input_gradient(slope, weight, like, shape.kernel, shape.stride, shape.padding)
    if by.name == "box":
        return boxes.convolve(slope, weight, None, like, shape.padding, back=True)[0]
    return gather.convolve(slope, weight, None, like, shape.stride, shape.padding, back=True)


def weight_gradient(x: Tensor, seen: Tensor | None, slope: Tensor, shape: Shape) -> Tensor:
    """The gradient [G, out, in, K, K] of the weight, in float32. `seen`: the columns, if they were kept."""
    by, clients, kernel = shape.weight, shape.clients, shape.kernel
    if by.name == "turned" and by.how is not None:
        return turned.weight_gradient(x, slope, clients, kernel, shape.padding, by.how, shape.stride)
    if by.name == "lines" and by.how is not None:
        return lines.weight_gradient(x, slope, clients, kernel, by.how)
    if by.name == "columns":
        return columns.weight_gradient(shape.columns(x) if seen is None else seen, slope, clients, kernel)
    if by.name == "box":
        return boxes.weight_gradient(x, slope, clients, kernel, shape.padding)
    return gather.weight_gradient(x, slope, clients, kernel, shape.stride, shape.padding)


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
        x = x.contiguous(memory_format=torch.channels_last)
        bias = None if bias is None else bias.contiguous()  # a model that all clients share is an expanded view
        shape = Shape.of(x, weight, stride, padding, spare)
        there = ready(weight, x.dtype, shape.forward)
        same = "columns" not in (shape.forward.name, shape.back.name)
        again = there if same or not ctx.needs_input_grad[0] else ready(weight, x.dtype, shape.back, back=True)
        seen = shape.columns(x) if shape.forward.name == "columns" else None
        out, sums = forward(x, seen, there, bias, shape, counted, real)
        keeps = shape.weight.name == "columns" and seen is not None
        ctx.save_for_backward(x, again, seen if keeps else None)
        ctx.shape, ctx.has_bias = shape, bias is not None
        if sums is not None:
            ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, seen = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        to_x = input_gradient(slope, weight, ctx.shape) if ctx.needs_input_grad[0] else None
        to_weight = weight_gradient(x, seen, slope, ctx.shape) if ctx.needs_input_grad[1] else None
        to_bias = None
        if ctx.has_bias and ctx.needs_input_grad[2]:
            to_bias = totals(slope, ctx.shape.clients)
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
    """The convolution of maps [G·B, in, H, W] with square kernels [G, out, in, K, K] (float32) and biases [G, out].

    The second result is the statistics for `norm.normalise`, over the `real` samples [G, B]: if `counted` and the
    kernel can compute them, else None. `spare`: rows and columns of zeros to add below and on the right, in addition to
    `padding` on every side."""
    kernel, values = weight.shape[-1], weight[0, 0].numel()
    if x.shape[1] < 16 and values <= 64 and not x.requires_grad:  # images: products over few channels are slow
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
    """The products [G, m, n] of [G, m, k] and [G, k, n], in float32."""
    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b).float()


def pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """The pointwise convolution of maps [G·B, in, H, W] with matrices [G, out, in] (float32): a product per client."""
    return _Pointwise.apply(x, weight)  # type: ignore[no-any-return,no-untyped-call]
