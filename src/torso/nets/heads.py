"""Heads, which turn features into logits, and head initialisations, which draw their first weights (spec 12.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from torso.errors import RequestError
from torso.kinds import Beta, Count, CountOrZero, Positive
from torso.nets.dual import DualHead, HyperLinear
from torso.nets.gpfl import GpflHead
from torso.nets.layers import Linear
from torso.nets.shifted import ShiftedHead
from torso.nets.simplex import SimplexHead, simplex
from torso.nets.sparse_simplex import SparseSimplexHead, sparse_simplex
from torso.registry import Registry

HeadInit = Callable[[Tensor, Tensor | None, Generator], None]  # fills weight [C, d] and bias [C] in place
head_inits: Registry[HeadInit] = Registry("model.head_init")
_gain = math.sqrt(2)


def _default_bias(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """Draw the bias from PyTorch's U(±1/√d). FedBABU's runs do so whatever the rule of the weights (spec 12.1)."""
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


def _orthogonal_rows(
    name: str, weight: Tensor, gain: float, generator: Generator, key: str = "model.head_init"
) -> None:
    """Fill a weight [C, d] with orthogonal rows of length `gain`. `key`, `name`: the setting that a message names."""
    classes, features = weight.shape
    if features < classes:
        raise RequestError(
            f"{key} = {name!r} needs at least as many features as classes, found {features} features and "
            f"{classes} classes. Choose a body with {classes} or more features, or another {key.rpartition('.')[2]}"
        )
    nn.init.orthogonal_(weight, gain, generator=generator)


class Head(ABC):
    """A kind of head: how features become logits. One value of the axis `method.head`."""

    @abstractmethod
    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        """A module from features [G, B, features] to logits [G, B, classes]. Its weights may get a client dimension."""

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        """Draw the first weights of the last linear layer by `model.head_init`. Other layers stay as built."""
        *_, linear = (m for m in module.modules() if isinstance(m, Linear))
        init(linear.weight, linear.bias, generator)


heads: Registry[type[Head]] = Registry("method.head")


@heads.register("linear")
@dataclass(frozen=True)
class LinearHead(Head):
    """Features become logits by one linear layer."""

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return Linear(features, classes, bias=bias)


class NormalizedLinear(Linear):
    """A linear layer on features of length one: W·f/‖f‖."""

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, of x / max(‖x‖, 1e-12)"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.normalize(x, dim=-1))  # divided by max(‖f‖, 1e-12)


@heads.register("normalized")
@dataclass(frozen=True)
class Normalized(Head):
    """A linear layer on features of length one, without a bias unless `bias` (FedFN, spec 8.1)."""

    bias: bool = False

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return NormalizedLinear(features, classes, bias=self.bias)


class CosineLinear(Linear):
    """A layer whose logits are τ·cos(W_c, f)."""

    def __init__(self, features: int, classes: int, tau: float) -> None:
        super().__init__(features, classes, bias=False)
        self.tau = tau

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.tau:g} · cos(weight, x)"

    def forward(self, x: Tensor) -> Tensor:
        rows = F.normalize(self.weight, dim=-1)
        return self.tau * (F.normalize(x, dim=-1) @ rows.mT)


@heads.register("shifted")
@dataclass(frozen=True)
class Shifted(Head):
    """A linear layer on features to which a vector is added: the part `head.shift`, which starts at zero (FedDBE, spec
    19.15)."""

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return ShiftedHead(features, classes, bias)


@heads.register("sphere")
@dataclass(frozen=True)
class Sphere(Head):
    """Logits are τ times the cosines of the features to orthonormal rows (SphereFed, spec 8.3). There must not be more
    classes than features."""

    tau: Positive = 1.0

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return CosineLinear(features, classes, self.tau)

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        super().start(module, orthonormal, generator)


@heads.register("simplex")
@dataclass(frozen=True)
class Simplex(Head):
    """Logits are β times the cosines of projected features to the corners of a regular simplex (FedETF, spec 19.9).

    β starts at `scale` and learns with the projection. Without a projection (`project = false`) β is fixed. The parts
    are `head.projection` and `head.classifier`, the corners. There must not be more classes than features."""

    scale: Positive = 10.0
    project: bool = True

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return SimplexHead(features, classes, self.scale, self.project)

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        super().start(module, corners, generator)


def corners(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    """Fill a weight with the corners of a regular simplex, rotated at random. It is a `HeadInit`."""
    _orthogonal_rows("simplex", weight, 1.0, generator, key="method.head")
    weight.copy_(simplex(weight))


@heads.register("sparse-simplex")
@dataclass(frozen=True)
class SparseSimplex(Head):
    """A fixed classifier with a share `sparsity` of zeros trains the body. Its rows have length `length` and lie far
    apart. An auxiliary and a personal head learn from the body's features (FedLoGe, spec 19.23).

    The parts are `head.classifier`, `head.auxiliary` and `personal`. There must not be more classes than features."""

    sparsity: Beta = 0.6
    length: Positive = 1.0

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return SparseSimplexHead(features, classes)

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        assert isinstance(module, SparseSimplexHead)
        for name in ("auxiliary", "personal"):
            super().start(module.get_submodule(name), init, generator)
        fixed = module.classifier.weight
        _orthogonal_rows("sparse-simplex", fixed, 1.0, generator, key="method.head")
        fixed.copy_(sparse_simplex(fixed, self.sparsity, self.length, generator))
        if module.classifier.bias is not None:
            module.classifier.bias.zero_()


@heads.register("gpfl")
@dataclass(frozen=True)
class Gpfl(Head):
    """A conditional valve makes generic and personal features. The generic ones are compared with an embedding of each
    class, and the client's own head classifies the personal ones (GPFL, spec 19.24).

    The parts are `head.embeddings`, `head.valve` and `personal`. The embeddings are drawn from N(0, 1).

    A client's condition of the valve is the mean over the classes of embeddings times the client's class shares;
    `over = "samples"`: the mean over its samples, without the number of classes below, as in the authors' code."""

    over: Literal["classes", "samples"] = "classes"

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        return GpflHead(features, classes, bias, by_samples=self.over == "samples")

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        assert isinstance(module, GpflHead)
        super().start(module.personal, init, generator)
        nn.init.normal_(module.embeddings.weight, generator=generator)


class Layers(nn.Sequential):
    """Linear layers with ReLU between them."""

    def extra_repr(self) -> str:
        return "ReLU after every layer but the last"

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self
        for layer in hidden:
            x = F.relu_(layer(x))
        return last(x)  # type: ignore[no-any-return]


@heads.register("mlp")
@dataclass(frozen=True)
class MlpHead(Head):
    """Three linear layers with ReLU between them, with `hidden` units (0: as many as there are features; spec 7.5)."""

    hidden: CountOrZero = 0

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        hidden = self.hidden or features
        return Layers(Linear(features, hidden), Linear(hidden, hidden), Linear(hidden, classes, bias=bias))


@heads.register("dual")
@dataclass(frozen=True)
class Dual(Head):
    """A generic head and a personal head whose logits are added to the generic ones (Fed-RoD, spec 6.2 and 6.3).

    `personal = "linear"`: the client's own linear layer, which starts at `origin`. `personal = "hyper"`: a layer
    generated from the client's class proportions by a shared network with `hidden` units. That network starts at
    PyTorch's default, which is so small that the personal model is nearly the generic one at first, as with `origin`
    zeros. With `origin` normal both kinds start at He's N(0, 2/d). `adds = false`: the personal head answers alone
    (FedTHE, spec 19.22). `through`: the personal loss also trains the body and the generic head. `prior`: the
    logarithms of the client's class proportions are added to its personal logits."""

    personal: Literal["linear", "hyper"] = "linear"
    origin: Literal["zeros", "generic", "default", "normal"] = "zeros"
    hidden: Count = 16
    adds: bool = True
    through: bool = False
    prior: bool = False

    def build(self, features: int, classes: int, bias: bool) -> nn.Module:
        # the linear layer is built even if it is not used: it draws from torch's generator, as every head does
        personal: nn.Module = Linear(features, classes, bias=bias)
        if self.personal == "hyper":
            personal = HyperLinear(features, classes, self.hidden)
        generic = Linear(features, classes, bias=bias)
        return DualHead(generic, personal, self.adds, self.through, classes if self.prior else 0)

    def start(self, module: nn.Module, init: HeadInit, generator: Generator) -> None:
        generic, personal = module.get_submodule("generic"), module.get_submodule("personal")
        super().start(generic, init, generator)
        if self.origin == "normal":
            for layer in personal.modules():
                if isinstance(layer, Linear):
                    kaiming_normal(layer.weight, layer.bias, generator)
        elif self.personal == "linear" and self.origin != "default":
            for mine, theirs in zip(personal.parameters(), generic.parameters(), strict=True):
                mine.copy_(theirs if self.origin == "generic" else torch.zeros_like(theirs))
