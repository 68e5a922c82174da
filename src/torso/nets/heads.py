"""Heads turn features into logits; head initialisations draw the weights they start from (spec 12.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from torso.errors import RequestError
from torso.nets.layers import Linear
from torso.registry import Registry

HeadInit = Callable[[Tensor, Tensor | None, Generator], None]  # weight [C, d], bias [C]; in place
head_inits: Registry[HeadInit] = Registry("model.head_init")
_gain = math.sqrt(2)


def _default_bias(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """PyTorch's U(±1/√d); FedBABU's federated runs keep it whatever the weights' rule (spec 12.1)."""
    if bias is not None:
        bound = 1 / math.sqrt(weight.shape[1])
        nn.init.uniform_(bias, -bound, bound, generator=generator)


@head_inits.register("default")
def default(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """PyTorch's default, U(±1/√d)."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    _default_bias(weight, bias, generator)


@head_inits.register("kaiming_uniform")
def kaiming_uniform(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """U(±√(6/d)) (He)."""
    nn.init.kaiming_uniform_(weight, nonlinearity="relu", generator=generator)
    _default_bias(weight, bias, generator)


@head_inits.register("kaiming_normal")
def kaiming_normal(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """N(0, 2/d) (He)."""
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    _default_bias(weight, bias, generator)


@head_inits.register("xavier_uniform")
def xavier_uniform(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """U(±√2·√(6/(d+C))) (Glorot, gain √2)."""
    nn.init.xavier_uniform_(weight, gain=_gain, generator=generator)
    _default_bias(weight, bias, generator)


@head_inits.register("xavier_normal")
def xavier_normal(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """N(0, 4/(d+C)) (Glorot, gain √2)."""
    nn.init.xavier_normal_(weight, gain=_gain, generator=generator)
    _default_bias(weight, bias, generator)


@head_inits.register("orthogonal")
def orthogonal(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """Orthogonal rows of length √2."""
    _orthogonal_rows("orthogonal", weight, _gain, generator)
    _default_bias(weight, bias, generator)


@head_inits.register("similar")
def similar(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """U(0.45, 0.55), rows of length 1: all classes point almost the same way."""
    nn.init.uniform_(weight, 0.45, 0.55, generator=generator)
    with torch.no_grad():
        weight /= weight.norm(dim=1, keepdim=True)
    _default_bias(weight, bias, generator)


@head_inits.register("orthonormal")
def orthonormal(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """Orthogonal rows of length 1, bias zero (SphereFed)."""
    _orthogonal_rows("orthonormal", weight, 1.0, generator)
    if bias is not None:
        nn.init.zeros_(bias)


def _orthogonal_rows(name: str, weight: Tensor, gain: float, generator: Generator) -> None:
    classes, features = weight.shape
    if features < classes:
        raise RequestError(
            f"model.head_init = {name!r} needs at least as many features as classes, found {features} features and "
            f"{classes} classes. Choose a body with {classes} or more features, or another head_init"
        )
    nn.init.orthogonal_(weight, gain, generator=generator)


class Head(ABC):
    """How features become logits: one value of the axis `method.head`."""

    @abstractmethod
    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        """A module from [G, B, features] to [G, B, classes], with or without a client dimension."""

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        """Draw the starting weights: by `model.head_init` for the first linear layer; the others stay as built."""
        linear = next(m for m in module.modules() if isinstance(m, Linear))
        init(linear.weight, linear.bias, generator)


heads: Registry[type[Head]] = Registry("method.head")


@heads.register("linear")
@dataclass(frozen=True)
class LinearHead(Head):
    """Features become logits by one linear layer."""

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return Linear(features, classes, bias=bias)
