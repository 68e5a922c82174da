"""A module that a program hands over (`torso.run(config, model=…)`), registered as a body and an initial head."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from torso.data.inputs import Floats, Input, Pixels, Tokens
from torso.errors import RequestError
from torso.nets.bodies import GIVEN, bodies
from torso.nets.body import Body
from torso.nets.heads import head_inits
from torso.nets.network import Network
from torso.nets.split import body_of, copied, split

_holders: Counter[str] = Counter()  # how often each name is registered at present


def register_model(model: Any, name: str = "") -> str:
    """Register a module, so that `model.body` and `model.head_init` find it, and return its name.

    The name is the given one, or one made of the module's class and a checksum of its structure and weights."""
    if not isinstance(model, nn.Module):
        raise RequestError(
            f"model is {type(model).__name__}. Expected: an nn.Module whose last layer is an nn.Linear, or what "
            "torso.split makes of one"
        )
    module = copied(model)
    for key, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise RequestError(f"{key} of model ({type(model).__name__}) is {kind}. Expected: float32 (model.float())")
    digest = hashlib.blake2b(repr(model).encode(), digest_size=4)
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    name = name or f"{GIVEN}{type(model).__name__}:{digest.hexdigest()}"
    _holders[name] += 1
    bodies[name] = GivenBody(module)
    head_inits[name] = GivenHead(*_last_linear(model))
    return name


def forget_model(name: str) -> None:
    """Undo one registration of a name; the last one removes the module."""
    _holders[name] -= 1
    if not _holders[name]:
        bodies.pop(name, None)
        head_inits.pop(name, None)


@dataclass(frozen=True, eq=False)
class GivenBody:
    """A maker of bodies: the body of a module that a program has handed over, with the module's weights."""

    module: nn.Module
    takes: ClassVar[tuple[type[Input], ...]] = (Pixels, Floats, Tokens)

    def __call__(self, input: Input) -> Body:
        if isinstance(self.module, Network):
            return copy.deepcopy(self.module.body)
        return body_of(self.module)


@dataclass(frozen=True, eq=False)
class GivenHead:
    """A head initialisation: the head starts as the module's own last layer if the sizes fit, and is drawn by
    `default` otherwise."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
        if weight.shape != self.weight.shape:
            head_inits["default"](weight, bias, generator)
            return
        with torch.no_grad():
            weight.copy_(self.weight)
            if bias is not None:
                bias.copy_(torch.zeros_like(bias) if self.bias is None else self.bias)


def _last_linear(model: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Copies of the weight and bias of the module's last linear layer, which becomes the head."""
    head = model.head if isinstance(model, Network) else split(model).head
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise RequestError(f"the head of {type(model).__name__} has no nn.Linear. Make one its last layer")
    bias = layers[-1].bias
    return layers[-1].weight.detach().clone(), None if bias is None else bias.detach().clone()
