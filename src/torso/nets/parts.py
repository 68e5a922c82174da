"""Which tensors a part of a network holds: chosen by a predicate over the module's tensors.

A buffer is in the same parts as the parameters of its layer, so running statistics belong to their norm layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from torso.errors import RequestError

Predicate = Callable[[str, nn.Module], bool]
"""(name of a tensor, the layer that holds it) → whether the tensor is in the part."""

# names that a user's part cannot have, because they have a meaning already
RESERVED = ("all", "full", "body", "head", "personal", "none", "blocks", "method", "lora")


def is_norm(name: str, layer: nn.Module) -> bool:
    """Whether the layer that holds a tensor is a normalisation layer of torch.nn."""
    return isinstance(layer, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm)


def chosen(module: nn.Module, predicate: Predicate) -> tuple[str, ...]:
    """The names of the tensors of a module, in state_dict order, for which a predicate holds.

    The predicate is called with every parameter, and with the buffers of layers that have no parameters. Any other
    buffer is chosen if a parameter of its layer is."""
    parameters = parameter_names(module)
    layers_with_parameters = {layer_of(name) for name in parameters}
    names = tuple(module.state_dict())
    answers = {
        name: predicate(name, module.get_submodule(layer_of(name)))
        for name in names
        if name in parameters or layer_of(name) not in layers_with_parameters
    }
    chosen_layers = {layer_of(name) for name, holds in answers.items() if holds}
    return tuple(name for name in names if answers.get(name, layer_of(name) in chosen_layers))


def check_named(module: nn.Module, parts: Mapping[str, Predicate]) -> None:
    """Refuse a part whose name is reserved or not an identifier, and a part that holds no tensor."""
    for name, predicate in parts.items():
        where = f"parts = {{{name!r}: …}} of {type(module).__name__}"
        if name in RESERVED or not name.isidentifier():
            raise RequestError(
                f"{where}: the name is reserved, or not an identifier. Accepted: letters, digits and _, "
                f"and none of {', '.join(RESERVED)}"
            )
        if not chosen(module, predicate):
            first = ", ".join(list(parameter_names(module))[:3])
            raise RequestError(
                f"{where} is empty: its predicate holds for no tensor. It is asked with (name, layer), as in "
                f"{first or 'nothing, since the module has no parameter'}"
            )


def pieces(part: str) -> Iterator[tuple[str, str]]:
    """The pieces of a part with their signs: `a+b-c` as ("+", a), ("+", b), ("-", c)."""
    first, *rest = re.split(r"\s*(?<!:)([+-])\s*", part.strip())  # `blocks:-1` stays one piece, an unknown one
    yield "+", first
    yield from zip(rest[::2], rest[1::2], strict=True)


def names_adapters(part: str) -> bool:
    """Whether a part such as `a+b-c` names `lora`, `lora.a` or `lora.b`, which only a network with adapters has."""
    return any(piece.partition(".")[0] == "lora" for _, piece in pieces(part))


def without(names: Sequence[str], others: Collection[str], parameters: Collection[str]) -> tuple[str, ...]:
    """The names that are not among the others. A buffer stays if a parameter of its layer stays."""
    kept_layers = {layer_of(name) for name in names if name in parameters and name not in others}
    return tuple(n for n in names if n not in others or (n not in parameters and layer_of(n) in kept_layers))


def frozen_names(module: nn.Module) -> frozenset[str]:
    """The names of a module's frozen tensors: parameters with `requires_grad=False`, and buffers of a layer whose
    parameters are all frozen.

    A layer without parameters counts as frozen if the smallest module around it that has parameters has only frozen
    ones."""
    learns = {name: p.requires_grad for name, p in module.named_parameters(remove_duplicate=False)}
    if all(learns.values()):
        return frozenset()

    def is_frozen(name: str) -> bool:
        if name in learns:
            return not learns[name]
        around = layer_of(name)
        while around:
            inside = [learning for other, learning in learns.items() if other.startswith(f"{around}.")]
            if inside:
                return not any(inside)
            around = layer_of(around)
        return not any(learns.values())

    return frozenset(name for name in module.state_dict() if is_frozen(name))


def parameter_names(module: nn.Module) -> dict[str, None]:
    """The names of a module's parameters in order, as keys of a dictionary. A shared parameter has several names."""
    return dict.fromkeys(name for name, _ in module.named_parameters(remove_duplicate=False))


def layer_of(name: str) -> str:
    """The name of the layer that holds a tensor, from the tensor's name."""
    return name.rpartition(".")[0]
