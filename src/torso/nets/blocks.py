"""The blocks that bodies are made of. Every block takes maps and `real` (see layers.py) and gives maps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from torso.fast import is_fast
from torso.nets.layers import BatchNorm2d, Conv2d, Linear, SameConv2d, flat

Norm = Literal["batch", "running"]  # the statistics that BatchNorm uses in evaluation (spec 12.2)


class Chain(nn.ModuleList):
    """A sequence of blocks, one after the other."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        for block in self:
            x = block(x, real)
        return x


class Unit(nn.Module):
    """A convolution, then BatchNorm, a pool and ReLU, as far as they are asked for.

    `padding`: a number, "same" for TensorFlow's, or None for kernel // 2. `six`: ReLU6, whose output is at most 6."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | Literal["same"] | None = None,
        groups: int = 1,
        bias: bool = True,
        norm: Norm | None = None,
        eps: float = 1e-5,
        relu: bool = True,
        six: bool = False,
        pool: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if padding == "same" and stride > 1:
            self.conv: Conv2d = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=bias)
        else:
            zeros = padding if isinstance(padding, int) else kernel // 2
            self.conv = Conv2d(inputs, outputs, kernel, stride, zeros, groups=groups, bias=bias)
        self.norm = None if norm is None else BatchNorm2d(outputs, norm == "running", eps)
        self.pool = pool
        self.relu: nn.Module | None = None
        if relu:
            self.relu = nn.ReLU6(inplace=True) if six else nn.ReLU(inplace=True)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        # by running statistics the fused path has no gradient
        if self.norm is not None and is_fast(x) and (self.norm.by_batch or not self._learns(x)):
            return self._fused(x, self.norm, real)
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x, real)
        elif is_fast(x) and self._halves and type(self.relu) is nn.ReLU:
            from torso.nets.kernels.maps import pooled

            return pooled(x)
        if self.pool is not None:  # before ReLU, which gives the same maximum and then has a smaller map to go over
            x = self.pool(x)
        return x if self.relu is None else self.relu(x)

    @property
    def _halves(self) -> bool:
        """Whether the pool is a max-pool over 2×2 pixels that halves the map."""
        pool = self.pool
        if not isinstance(pool, nn.MaxPool2d) or pool.ceil_mode or pool.return_indices:
            return False
        return (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (2, 2, 0, 1)

    def _learns(self, x: Tensor) -> bool:
        """Whether a gradient is needed, of x or of a parameter."""
        return torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in self.parameters()))

    def _fused(self, x: Tensor, norm: BatchNorm2d, real: Tensor | None) -> Tensor:
        """What the plain path gives, with fewer passes over the map. BatchNorm adds the convolution's bias itself."""
        halves = self._halves
        x, sums = self.conv.before_norm(x, real, counted=norm.by_batch)
        if self.pool is None or halves:
            cap = 6.0 if isinstance(self.relu, nn.ReLU6) else 0.0
            return norm.fused(x, real, self.conv.bias, sums, self.relu is not None, 2 if halves else 1, cap)
        x = self.pool(norm.fused(x, real, self.conv.bias, sums))
        return x if self.relu is None else self.relu(x)


class Dense(nn.Module):
    """A linear layer and ReLU on flat features. Maps are flattened first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if x.ndim == 4:
            clients = len(self.linear.weight) if self.linear.weight.ndim == 3 else 1
            x = flat(x, clients)
        return self.relu(self.linear(x))  # type: ignore[no-any-return]


class Subsample(nn.Module):
    """A shortcut without parameters: every stride-th pixel, then as many channels of zeros as there are channels."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def extra_repr(self) -> str:
        return f"every pixel in {self.stride}, then as many zero channels"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return torch.cat((x, torch.zeros_like(x)), 1)


class Residual(nn.Module):
    """A residual block: relu(path(x) + shortcut(x)).

    Without a shortcut x itself is added. Without `relu` the sum is the output."""

    def __init__(self, path: Chain, shortcut: nn.Module | None, relu: bool = True) -> None:
        super().__init__()
        self.path, self.shortcut = path, shortcut
        self.relu = nn.ReLU(inplace=True) if relu else None

    def extra_repr(self) -> str:
        total = f"path(x) + {'x' if self.shortcut is None else 'shortcut(x)'}"
        return total if self.relu is None else f"relu({total})"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        joined = self.path(x, real) + (x if self.shortcut is None else self.shortcut(x, real))
        return joined if self.relu is None else self.relu(joined)  # type: ignore[no-any-return]


class Fire(nn.Module):
    """SqueezeNet's fire module: a 1×1 convolution to few channels, then a 1×1 and a 3×3 convolution of these, whose
    outputs are concatenated (spec 11)."""

    def __init__(self, inputs: int, squeeze: int, expand: int, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.squeeze = Unit(inputs, squeeze, 1)
        self.small = Unit(squeeze, expand, 1)
        self.large = Unit(squeeze, expand, 3)
        self.pool = pool

    def extra_repr(self) -> str:
        return f"s = squeeze(x); {'pool of ' if self.pool else ''}cat(small(s), large(s)) over channels"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = self.squeeze(x, real)
        x = torch.cat((self.small(x, real), self.large(x, real)), 1)
        return x if self.pool is None else self.pool(x)


def he_normal(module: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Draw the weights of a convolution or linear layer from N(0, 2 / fan) and set its bias to 0. Other modules stay
    as they are."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def glorot_uniform(module: nn.Module) -> None:
    """Draw the weights of a convolution or linear layer from U(±√(6 / (fan in + fan out))). Its bias stays."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(module.weight)
