"""What bodies are made of. Every block maps folded maps and `real` (see layers.py) to folded maps."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.layers import BatchNorm2d, Conv2d, Linear, concat, unfold

Norm = Literal["batch", "running"]  # statistics in evaluation (spec 12.2)


class Chain(nn.ModuleList):
    """One block after the other."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        for block in self:
            x = block(x, real)
        return x


class Unit(nn.Module):
    """Convolution, then what is asked for of BatchNorm, ReLU and a pool; same-size padding unless told."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        bias: bool = True,
        norm: Norm | None = None,
        relu: bool = True,
        pool: nn.Module | None = None,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        self.conv = Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=bias)
        self.norm = None if norm is None else BatchNorm2d(outputs, tracks=norm == "running")
        self.relu = relu
        self.pool = pool

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x, real)
        if self.pool is not None:  # before ReLU: the same maximum, and a quarter of the map to go over
            x = self.pool(x)
        return F.relu_(x) if self.relu else x


class Dense(nn.Module):
    """Linear and ReLU on flat features; folded maps are flattened first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if x.ndim == 4:
            x = unfold(x, x.shape[1:].numel() // self.linear.in_features)
        return F.relu_(self.linear(x))


class Subsample(nn.Module):
    """The shortcut without parameters: every second pixel, and as many zero channels again behind each client's."""

    def __init__(self, inputs: int, stride: int) -> None:
        super().__init__()
        self.inputs, self.stride = inputs, stride

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return concat((x, torch.zeros_like(x)), x.shape[1] // self.inputs)


class Residual(nn.Module):
    """relu(path(x) + shortcut(x)); without a shortcut, x itself."""

    def __init__(self, path: Chain, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.path, self.shortcut = path, shortcut

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        return F.relu_(self.path(x, real) + (x if self.shortcut is None else self.shortcut(x, real)))


class Fire(nn.Module):
    """SqueezeNet's module: squeeze to few channels, expand by 1×1 and by 3×3, side by side (spec 11)."""

    def __init__(self, inputs: int, squeeze: int, expand: int, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.inputs = inputs
        self.squeeze = Unit(inputs, squeeze, 1)
        self.small = Unit(squeeze, expand, 1)
        self.large = Unit(squeeze, expand, 3)
        self.pool = pool

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        clients = x.shape[1] // self.inputs
        x = self.squeeze(x, real)
        x = concat((self.small(x, real), self.large(x, real)), clients)
        return x if self.pool is None else self.pool(x)


def he_normal(module: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Draw one convolution or linear layer from N(0, 2 / fan), bias 0; other modules stay as they are."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
