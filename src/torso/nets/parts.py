"""Which tensors a part of a network holds: by structure, or by a predicate of the network's own.

A buffer goes with the parameters of its layer, so running statistics belong to their norm layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from torso.errors import RequestError

Predicate = Callable[[str, nn.Module], bool]
"""(name of a tensor, the layer that holds it) → whether the part has it."""

RESERVED = ("all", "full", "body", "head", "personal", "none", "blocks", "method", "lora")


def is_norm(name: str, layer: nn.Module) -> bool:
    """Whether a normalisation layer of torch.nn holds the tensor."""
    return isinstance(layer, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm)


def chosen(module: nn.Module, predicate: Predicate) -> tuple[str, ...]:
    """The tensors of a module, in state_dict order, for which a predicate holds.

    It is asked of every parameter, and of the buffers of layers that have no parameters."""
    parameters = parameter_names(module)
    layers = {layer_of(name) for name in parameters}
    names = tuple(module.state_dict())
    asked = {
        name: predicate(name, module.get_submodule(layer_of(name)))
        for name in names
        if name in parameters or layer_of(name) not in layers
    }
    held = {layer_of(name) for name, holds in asked.items() if holds}
    return tuple(name for name in names if asked.get(name, layer_of(name) in held))


def check_named(module: nn.Module, parts: Mapping[str, Predicate]) -> None:
    """Refuse a name that means something else, and a part that holds nothing."""
    for name, predicate in parts.items():
        where = f"parts = {{{name!r}: …}} of {type(module).__name__}"
        if name in RESERVED or not name.isidentifier():
            raise RequestError(
                f"{where}: the name is taken or no word. Accepted: letters, digits and _, "
                f"and none of {', '.join(RESERVED)}"
            )
        if not chosen(module, predicate):
            first = ", ".join(list(parameter_names(module))[:3])
            raise RequestError(
                f"{where} is empty: its predicate holds for no tensor. It is asked with (name, layer), as in "
                f"{first or 'nothing, since the module has no parameter'}"
            )


def pieces(part: str) -> Iterator[tuple[str, str]]:
    """`a+b-c` as ("+", a), ("+", b), ("-", c)."""
    first, *rest = re.split(r"\s*(?<!:)([+-])\s*", part.strip())  # blocks:-1 is one word, and unknown
    yield "+", first
    yield from zip(rest[::2], rest[1::2], strict=True)


def names_adapters(part: str) -> bool:
    """Whether `a+b-c` names `lora`, `lora.a` or `lora.b`, which only a network with adapters has."""
    return any(piece.partition(".")[0] == "lora" for _, piece in pieces(part))


def without(names: Sequence[str], others: Collection[str], parameters: Collection[str]) -> tuple[str, ...]:
    """The names that are not among the others. A buffer stays where a parameter of its layer stays."""
    left = {layer_of(name) for name in names if name in parameters and name not in others}
    return tuple(n for n in names if n not in others or (n not in parameters and layer_of(n) in left))


def frozen_names(module: nn.Module) -> frozenset[str]:
    """What the module's owner froze: parameters with `requires_grad=False`, and buffers whose layer has no others.

    A layer without parameters goes with the smallest module around it that has some."""
    learns = {name: p.requires_grad for name, p in module.named_parameters(remove_duplicate=False)}
    if all(learns.values()):
        return frozenset()

    def is_frozen(name: str) -> bool:
        around = layer_of(name)
        while around:
            inside = [learning for other, learning in learns.items() if other.startswith(f"{around}.")]
            if inside:
                return not any(inside)
            around = layer_of(around)
        return not any(learns.values())

    return frozenset(name for name in module.state_dict() if (not learns[name] if name in learns else is_frozen(name)))


def parameter_names(module: nn.Module) -> dict[str, None]:
    """The names of the parameters in order, as keys of a dictionary."""
    return dict.fromkeys(name for name, _ in module.named_parameters(remove_duplicate=False))


def layer_of(name: str) -> str:
    return name.rpartition(".")[0]
