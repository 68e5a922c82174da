"""The layers whose kernels kernel_shapes.py compares, and a pass of each with every available kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.nets.kernels import boxes, conv
from torso.nets.kernels.ways import Layer, Pass, Way, candidates, layer_of, way

BATCH = 50
KINDS: tuple[Pass, ...] = ("forward", "back", "weight")
FAR = {"bf16": 1e-2, "tf32": 1.5e-3, "ieee": 1e-5}
CUDA = torch.device("cuda")


class Conv(NamedTuple):
    """Channels, size of the map that goes in, kernel, stride."""

    inputs: int
    outputs: int
    side: int
    kernel: int = 3
    stride: int = 1

    def __str__(self) -> str:
        return f"{self.inputs}>{self.outputs}@{self.side} k{self.kernel} s{self.stride}"

    @property
    def out(self) -> int:
        return (self.side + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Operations of a pass over one image."""
        return 2 * self.out**2 * self.inputs * self.outputs * self.kernel**2


VGG11 = [
    Conv(64, 128, 16),
    *(Conv(a, b, 8) for a, b in ((128, 256), (256, 256))),
    *(Conv(a, b, 4) for a, b in ((256, 512), (512, 512))),
    Conv(512, 512, 2),
]
RESNET18 = [
    *(Conv(c, c, 2048 // c) for c in (64, 128)),
    *(Conv(c, 2 * c, 2048 // c, k, 2) for c in (64, 128, 256) for k in (3, 1)),
]
RESNET50 = [
    *(Conv(c, c, 4096 // c, 3, 2) for c in (128, 256, 512)),
    *(Conv(c, 2 * c, 8192 // c, 1, 2) for c in (256, 512, 1024)),
]
IMAGES = Conv(32, 64, 32, 1)  # as patches
CONV4 = [Conv(64, 64, side) for side in (16, 8, 4)]
LAYERS = [*VGG11, *RESNET18, IMAGES, *RESNET50, *CONV4]


def tensors(layer: Conv, clients: int, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """Maps, weights in float32, and a slope."""
    random = torch.Generator(CUDA).manual_seed(layer.inputs + layer.outputs + layer.side)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def maps(channels: int, side: int) -> Tensor:
        made = torch.randn(clients * BATCH, side, side, channels, device=CUDA, generator=random)
        return made.to(dtype).permute(0, 3, 1, 2)

    weight = torch.randn(
        clients, layer.outputs, layer.inputs, layer.kernel, layer.kernel, device=CUDA, generator=random
    )
    weight /= (layer.inputs * layer.kernel**2) ** 0.5
    return maps(layer.inputs, layer.side), weight, maps(layer.outputs, layer.out)


def shape_of(layer: Conv, x: Tensor, weight: Tensor) -> conv.Shape:
    return conv.Shape.of(x, weight, layer.stride, layer.kernel // 2, 0)


def layer_seen(kind: Pass, layer: Conv, x: Tensor, precision: str) -> Layer:
    """The layer as the choice of kernels gets it."""
    side, pad = layer.side if kind == "back" else layer.out, layer.kernel // 2
    boxed = boxes.boxable(x, layer.outputs, layer.kernel, layer.stride, pad)
    sizes = layer.inputs, layer.outputs, side, side, layer.kernel, layer.stride, pad
    return layer_of(kind, *sizes, spare=0, precision=precision, boxed=boxed, samples=BATCH)


def ways_of(kind: Pass, layer: Conv, x: Tensor, precision: str) -> list[Way]:
    """The way that is chosen, and the others."""
    seen = layer_seen(kind, layer, x, precision)
    found = dict.fromkeys([way(kind, seen), *candidates(kind, seen)])
    size = x.shape[0] * layer.out**2 * layer.inputs * layer.kernel**2 * x.element_size()
    return [one for one in found if one.name != "columns" or size < 3e9]


def work(kind: Pass, by: Way, layer: Conv, x: Tensor, weight: Tensor, slope: Tensor) -> Callable[[], Tensor]:
    """One pass, as a step of training does it."""
    shape = replace(shape_of(layer, x, weight), **{kind: by})
    if kind == "forward":

        def forward() -> Tensor:
            seen = shape.columns(x) if by.name == "columns" else None
            return conv.forward(x, seen, conv.ready(weight, x.dtype, by), None, shape)[0]

        return forward
    if kind == "back":
        there = conv.ready(weight, x.dtype, by, back=True)
        return lambda: conv.input_gradient(slope, there, shape)
    return lambda: conv.weight_gradient(x, None, slope, shape)


def by_cudnn(
    kind: Pass, layer: Conv, x: Tensor, weight: Tensor, slope: Tensor, groups: int = 1
) -> Callable[[], Tensor]:
    """PyTorch's own convolution; weight [out, in, K, K]."""
    pad = layer.kernel // 2
    if kind == "forward":
        return lambda: F.conv2d(x, weight.to(x.dtype), None, layer.stride, pad, 1, groups)
    ready = weight.to(x.dtype).contiguous(memory_format=torch.channels_last)
    mask = [kind == "back", kind == "weight", False]

    def backward() -> Tensor:
        got = torch.ops.aten.convolution_backward(
            slope, x, ready, None, [layer.stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask
        )
        return got[0 if kind == "back" else 1]  # type: ignore[no-any-return]

    return backward


def truth(kind: Pass, layer: Conv, x: Tensor, weight: Tensor, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """In a dtype, client by client."""
    wide = x.to(dtype).contiguous(), weight.to(x.dtype).to(dtype), slope.to(dtype).contiguous()
    each = zip(wide[0].chunk(len(weight)), wide[1], wide[2].chunk(len(weight)), strict=True)
    found = [by_cudnn(kind, layer, *one)() for one in each]
    return torch.stack(found) if kind == "weight" else torch.cat(found)


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def compile_others(layer: Conv, x: Tensor, weight: Tensor) -> None:
    """As networks call it: with statistics for BatchNorm, with a bias."""
    pad = layer.kernel // 2
    conv.convolution(x, weight, None, layer.stride, pad, counted=True)
    conv.convolution(x, weight, torch.zeros(weight.shape[:2], device=CUDA), layer.stride, pad)
