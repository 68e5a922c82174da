"""LoRA layers: a frozen layer W becomes W x + (alpha / rank) · b a x, and only a and b learn (Hu 2022).

They are Torso's own because those of `peft` know no client dimension: G clients would take G forward passes. Here the
clients' samples stand in line, the frozen W is one tensor for all, and a and b carry the client dimension:

G clients, N samples in line (client 0's first), r the rank
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
    """Which adapters a body gets: `model.lora`. `base`: the mode in which the frozen body computes while they learn."""

    rank: Count = 8
    alpha: Positive = 16.0
    targets: tuple[str, ...] = ("auto",)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    base: Literal["eval", "train"] = "eval"

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapted(nn.Module):
    """What the LoRA layers have in common. Each is the layer that it was, with the same names for its weights; what is
    new begins with `lora`, since it may be a layer of anybody's."""

    lora_a: Linear | Conv2d
    lora_b: Linear | Conv2d
    lora_drop: nn.Module | None
    lora_scale: float
    lora_was: type[nn.Module]

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is made when it is needed, so copies and pickles name the class that the layer had."""
        return _blank, (self.lora_was,), self.__dict__

    def lora_seen(self, x: Tensor) -> Tensor:
        """What the adapter gets of the layer's input."""
        return x if self.lora_drop is None else self.lora_drop(x)


class AdaptedLinear(Adapted):
    """A linear layer with an adapter."""

    def forward(self, x: Tensor) -> Tensor:
        said, seen = super().forward(x), self.lora_seen(x)
        a, b = (layer.weight.to(x.dtype) for layer in (self.lora_a, self.lora_b))
        if a.ndim == 2:
            return said + self.lora_scale * F.linear(F.linear(seen, a), b)  # type: ignore[no-any-return]
        return _changed(said, torch.bmm(_rows(seen, len(a)), a.mT), b, self.lora_scale)


class AdaptedConv2d(Adapted):
    """A convolution with an adapter: a has the kernel, b is 1×1."""

    kernel_size: tuple[int, int]
    padding: tuple[int, int] | str
    stride: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        return self._adapted(super().forward(x), x)

    def before_norm(self, x: Tensor, real: Tensor | None, counted: bool = True) -> tuple[Tensor, Tensor | None]:
        """As that of torso's Conv2d; statistics of W x alone would be none of the sum's."""
        said, _ = super().before_norm(x, None, counted=False)  # type: ignore[misc]
        return self._adapted(said, x), None

    def _adapted(self, said: Tensor, x: Tensor) -> Tensor:
        a, b, seen = self.lora_a.weight, self.lora_b.weight.to(x.dtype), self.lora_seen(x)
        if a.ndim == 4:
            return said + self.lora_scale * F.conv2d(self.lora_a(seen), b)
        pointwise = self.kernel_size == (1, 1) and self.padding in ((0, 0), "same", "valid")
        low = seen[:, :, :: self.stride[0], :: self.stride[1]] if pointwise else self.lora_a(seen)
        low = low.to(x.dtype)
        ways = (a.flatten(2).to(x.dtype), b.flatten(2)) if pointwise else (b.flatten(2),)
        return _changed_maps(said, low, ways, self.lora_scale)


def _changed_maps(said: Tensor, low: Tensor, ways: tuple[Tensor, ...], scale: float) -> Tensor:
    """Maps [N, out, H, W] plus what matrices [G, rows, columns] make of other maps, pixel by pixel; in the layout that
    the maps have, since the next layer may be slow in another."""
    *first, last = ways
    if said.is_contiguous(memory_format=torch.channels_last):
        rows = _rows(low.permute(0, 2, 3, 1), len(last))
        for matrix in first:
            rows = torch.bmm(rows, matrix.mT)
        return _changed(said.permute(0, 2, 3, 1), rows, last, scale).permute(0, 3, 1, 2)
    pixels = low.flatten(2)
    for matrix in first:
        pixels = torch.bmm(_each_sample(matrix, len(low)), pixels)
    return torch.baddbmm(said.flatten(2), _each_sample(last, len(low)), pixels, alpha=scale).view(said.shape)


def _each_sample(matrix: Tensor, samples: int) -> Tensor:
    """[G, rows, columns] -> [N, rows, columns]."""
    return matrix.repeat_interleave(samples // len(matrix), dim=0, output_size=samples)


def _rows(x: Tensor, clients: int) -> Tensor:
    """[N, …, d] in line -> [G, rows, d]."""
    return x.reshape(clients, -1, x.shape[-1])


def _changed(said: Tensor, low: Tensor, b: Tensor, scale: float) -> Tensor:
    """What the layer said [N, …, out] plus the change, from rows of low rank [G, rows, r] and b [G, out, r]."""
    return torch.baddbmm(_rows(said, len(b)), low, b.mT, alpha=scale).view(said.shape)


_kinds: dict[type[nn.Module], type[nn.Module]] = {}


def _kind(was: type[nn.Module]) -> type[nn.Module]:
    """The class of a layer with an adapter, from the class of the layer."""
    if was not in _kinds:
        mixin = AdaptedConv2d if issubclass(was, nn.Conv2d) else AdaptedLinear
        _kinds[was] = type(f"Lora{was.__name__}", (mixin, was), {"lora_was": was, "__module__": __name__})
    return _kinds[was]


def _blank(was: type[nn.Module]) -> nn.Module:
    kind = _kind(was)
    return kind.__new__(kind)


def put_adapter(layer: nn.Linear | nn.Conv2d, lora: Lora, generator: Generator) -> None:
    """Give a layer an adapter, in place: others may hold on to the layer. a is drawn as in the paper, b is zero."""
    place, rank = layer.weight.device, lora.rank
    a: Linear | Conv2d
    b: Linear | Conv2d
    if isinstance(layer, nn.Conv2d):
        how = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        a = Conv2d(layer.in_channels, rank, layer.kernel_size, bias=False, device=place, **how)  # type: ignore[arg-type]
        b = Conv2d(rank, layer.out_channels, 1, bias=False, device=place)
    else:
        a = Linear(layer.in_features, rank, bias=False, device=place)
        b = Linear(rank, layer.out_features, bias=False, device=place)
    nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5), generator=generator)
    nn.init.zeros_(b.weight)
    layer.__class__ = _kind(type(layer))  # type: ignore[assignment]
    assert isinstance(layer, Adapted)
    layer.lora_a, layer.lora_b, layer.lora_scale = a, b, lora.scale
    layer.lora_drop = nn.Dropout(lora.dropout) if lora.dropout else None


def adapter_parts(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """The tensors of the adapters in a module by part: `lora`, `lora.a` and `lora.b`; nothing where there are none."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, Adapted)]
    a, b = (tuple(f"{name}.lora_{half}.weight".lstrip(".") for name in layers) for half in "ab")
    return {"lora": tuple(sorted(a + b)), "lora.a": a, "lora.b": b} if layers else {}


def is_adapter(name: str) -> bool:
    """Whether a tensor is one of an adapter, by its name in a state_dict."""
    return name.endswith((".lora_a.weight", ".lora_b.weight"))
