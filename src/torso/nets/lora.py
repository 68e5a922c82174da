"""LoRA layers: a frozen layer W becomes W x + (alpha / rank) · b a x, and only a and b learn (Hu 2022).

They are Torso's own because the layers of `peft` have no client dimension: G clients would take G forward passes. Here
the clients' samples are concatenated, the frozen W is one tensor for all clients, and a and b have the client
dimension:

G clients, N samples of all clients (client 0's first), r the rank
linear  x [N, …, in]     a [G, r, in]         b [G, out, r]
maps    x [N, in, H, W]  a [G, r, in, K, K]   b [G, out, r, 1, 1]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn

from torso.kinds import Count, Positive
from torso.nets.layers import Conv2d, Linear


@dataclass(frozen=True)
class Lora:
    """Which adapters a body gets: the settings of `model.lora`.

    `base`: the mode in which the frozen body computes while the adapters learn."""

    rank: Count = 8
    alpha: Positive = 16.0
    targets: tuple[str, ...] = ("auto",)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    base: Literal["eval", "train"] = "eval"

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapted(nn.Module):
    """The base class of layers with an adapter.

    A layer gets its adapter in place and keeps the names of its weights. It may be a layer of any library, so the
    names of all new attributes begin with `lora`."""

    lora_a: Linear | Conv2d
    lora_b: Linear | Conv2d
    lora_drop: nn.Module | None
    lora_scale: float
    lora_was: type[nn.Module]  # the class that the layer had without an adapter

    def __reduce__(self) -> tuple[Any, ...]:
        """The class with the adapter is made at run time, so copies and pickles name the class that the layer had."""
        return _blank, (self.lora_was,), self.__dict__

    def lora_seen(self, x: Tensor) -> Tensor:
        """The adapter's input: the layer's input after the adapter's dropout."""
        return x if self.lora_drop is None else self.lora_drop(x)


class AdaptedLinear(Adapted):
    """A linear layer with an adapter."""

    def forward(self, x: Tensor) -> Tensor:
        base = super().forward(x)
        seen = self.lora_seen(x)
        a, b = self.lora_a.weight.to(x.dtype), self.lora_b.weight.to(x.dtype)
        if a.ndim == 2:
            return base + self.lora_scale * F.linear(F.linear(seen, a), b)  # type: ignore[no-any-return]
        return _changed(base, torch.bmm(_rows(seen, len(a)), a.mT), b, self.lora_scale)


class AdaptedConv2d(Adapted):
    """A convolution with an adapter: a has the convolution's kernel size, b is 1×1."""

    kernel_size: tuple[int, int]
    padding: tuple[int, int] | str
    stride: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        return self._adapted(super().forward(x), x)

    def before_norm(self, x: Tensor, real: Tensor | None, counted: bool = True) -> tuple[Tensor, Tensor | None]:
        """As `Conv2d.before_norm`, but without statistics: those of W x would not be those of the sum."""
        base, _ = super().before_norm(x, None, counted=False)  # type: ignore[misc]
        return self._adapted(base, x), None

    def _adapted(self, base: Tensor, x: Tensor) -> Tensor:
        """The output `base` of the frozen convolution plus the adapter's change."""
        a, b = self.lora_a.weight, self.lora_b.weight.to(x.dtype)
        seen = self.lora_seen(x)
        if a.ndim == 4:
            return base + self.lora_scale * F.conv2d(self.lora_a(seen), b)
        pointwise = self.kernel_size == (1, 1) and self.padding in ((0, 0), "same", "valid")
        if pointwise:  # a is a matrix per pixel too
            maps = seen[:, :, :: self.stride[0], :: self.stride[1]].to(x.dtype)
            return _changed_maps(base, maps, (a.flatten(2).to(x.dtype), b.flatten(2)), self.lora_scale)
        return _changed_maps(base, self.lora_a(seen).to(x.dtype), (b.flatten(2),), self.lora_scale)


def _changed_maps(base: Tensor, maps: Tensor, matrices: tuple[Tensor, ...], scale: float) -> Tensor:
    """`base` [N, out, H, W] plus `scale` times other maps, to whose pixels the matrices [G, rows, columns] are applied
    one after the other.

    The result has the memory layout of `base`, because the next layer may be slow in another."""
    *first, last = matrices
    if base.is_contiguous(memory_format=torch.channels_last):
        rows = _rows(maps.permute(0, 2, 3, 1), len(last))
        for matrix in first:
            rows = torch.bmm(rows, matrix.mT)
        return _changed(base.permute(0, 2, 3, 1), rows, last, scale).permute(0, 3, 1, 2)
    pixels = maps.flatten(2)
    for matrix in first:
        pixels = torch.bmm(_each_sample(matrix, len(maps)), pixels)
    return torch.baddbmm(base.flatten(2), _each_sample(last, len(maps)), pixels, alpha=scale).view(base.shape)


def _each_sample(matrix: Tensor, samples: int) -> Tensor:
    """[G, rows, columns] -> [N, rows, columns]: a client's matrix for each of its samples."""
    return matrix.repeat_interleave(samples // len(matrix), dim=0, output_size=samples)


def _rows(x: Tensor, clients: int) -> Tensor:
    """[N, …, d] -> [G, rows, d]: the rows of each client."""
    return x.reshape(clients, -1, x.shape[-1])


def _changed(base: Tensor, low: Tensor, b: Tensor, scale: float) -> Tensor:
    """The output `base` [N, …, out] of the frozen layer plus the adapter's change.

    The change is made of rows of low rank [G, rows, r] and b [G, out, r]."""
    return torch.baddbmm(_rows(base, len(b)), low, b.mT, alpha=scale).view(base.shape)


_kinds: dict[type[nn.Module], type[nn.Module]] = {}


def _kind(was: type[nn.Module]) -> type[nn.Module]:
    """The class of a layer with an adapter, from the class of the layer."""
    if was not in _kinds:
        mixin = AdaptedConv2d if issubclass(was, nn.Conv2d) else AdaptedLinear
        _kinds[was] = type(f"Lora{was.__name__}", (mixin, was), {"lora_was": was, "__module__": __name__})
    return _kinds[was]


def _blank(was: type[nn.Module]) -> nn.Module:
    """An empty layer with an adapter, for a copy or a pickle to fill."""
    kind = _kind(was)
    return kind.__new__(kind)


def put_adapter(layer: nn.Linear | nn.Conv2d, lora: Lora, generator: Generator) -> None:
    """Give a layer an adapter in place, because other modules may refer to the layer.

    a is drawn as in the paper, b is zero."""
    device, rank = layer.weight.device, lora.rank
    a: Linear | Conv2d
    b: Linear | Conv2d
    if isinstance(layer, nn.Conv2d):
        options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        a = Conv2d(layer.in_channels, rank, layer.kernel_size, bias=False, device=device, **options)  # type: ignore[arg-type]
        b = Conv2d(rank, layer.out_channels, 1, bias=False, device=device)
    else:
        a = Linear(layer.in_features, rank, bias=False, device=device)
        b = Linear(rank, layer.out_features, bias=False, device=device)
    nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5), generator=generator)
    nn.init.zeros_(b.weight)
    layer.__class__ = _kind(type(layer))  # type: ignore[assignment]
    assert isinstance(layer, Adapted)
    layer.lora_a, layer.lora_b, layer.lora_scale = a, b, lora.scale
    layer.lora_drop = nn.Dropout(lora.dropout) if lora.dropout else None


def adapter_parts(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """The names of a module's adapter tensors by part: `lora`, `lora.a` and `lora.b`. Empty if it has no adapters."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, Adapted)]
    if not layers:
        return {}
    a = tuple(f"{name}.lora_a.weight".lstrip(".") for name in layers)
    b = tuple(f"{name}.lora_b.weight".lstrip(".") for name in layers)
    return {"lora": tuple(sorted(a + b)), "lora.a": a, "lora.b": b}


def is_adapter(name: str) -> bool:
    """Whether a name in a state_dict is that of an adapter's tensor."""
    return name.endswith((".lora_a.weight", ".lora_b.weight"))
