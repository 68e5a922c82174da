"""Checks of what a user's personal strategy returns."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torso.errors import RunFailed
from torso.nets import Tensors
from torso.personal.base import Personal, personals


def check_start(choice: Personal, found: object, like: Tensors) -> None:
    """Refuse the result of `before` if it is not a pair of the models [G, *] that the visit begins with and the
    notes."""
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise RunFailed(
            f"method.personal = {personals.name_of(choice)!r}: before() returns {_kind(found)}. Expected: the models "
            "that the visit begins with, and the clients' notes, such as `return at.received, at.notes`"
        )
    check_models(choice, "before()", found[0], like)


def check_models(choice: Personal, told: str, found: object, like: Tensors) -> None:
    """Refuse models that lack a tensor of `like` or have one of another shape. `told`: the function that returned them.
    Without this check, PyTorch would raise an error later, or broadcast silently."""
    what = f"method.personal = {personals.name_of(choice)!r}: {told} returns"
    if not isinstance(found, Mapping):
        raise RunFailed(f"{what} {_kind(found)}. Expected: the clients' models, a dict of tensors by name")
    if lacking := [name for name in like if name not in found]:
        raise RunFailed(f"{what} models without {', '.join(lacking[:3])}. Expected: all of {', '.join(like)}")
    for name, model in like.items():
        one = found[name]
        if not isinstance(one, Tensor) or one.shape != model.shape:
            kind = f"of shape {list(one.shape)}" if isinstance(one, Tensor) else f"that is {_kind(one)}"
            raise RunFailed(f"{what} a {name!r} {kind}. Expected: {list(model.shape)}, clients first")


def _kind(found: object) -> str:
    """A short description of a value for messages."""
    return f"{len(found)} values" if isinstance(found, tuple) else type(found).__name__
