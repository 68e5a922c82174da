"""Visits under way in a checkpoint: tensors `pending/CLIENT/…`, and a few numbers in its JSON file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torso.nets import Tensors
from torso.personal.state import Pending
from torso.personal.store import KINDS, ClientState, Elsewhere

PENDING = "pending"
_SENT = "sent"
_NUMBERS = ("client", "began", "arrives", "samples")
Placed = Callable[[str, str, Tensor], Tensor]
"""(kind, name, tensor of a file) → the tensor where the run's are, once it is known to fit."""


def tensors_of(pending: Iterable[Pending]) -> Tensors:
    found: Tensors = {}
    for visit in pending:
        parts: dict[str, Tensors] = {_SENT: visit.sent, "": {"loss": visit.loss, "finite": visit.finite}}
        left = visit.left.fetch() if isinstance(visit.left, Elsewhere) else visit.left
        parts |= {} if left is None else {kind: getattr(left, kind) for kind in KINDS}
        found |= {f"{PENDING}/{visit.client}/{kind}/{n}": t for kind, held in parts.items() for n, t in held.items()}
    return found


def numbers_of(pending: Iterable[Pending]) -> list[dict[str, Any]]:
    return [
        {**{name: getattr(visit, name) for name in _NUMBERS}, "leaves": visit.left is not None} for visit in pending
    ]


def read_pending(tensors: Tensors, numbers: Sequence[Mapping[str, Any]], placed: Placed) -> tuple[Pending, ...]:
    """What a checkpoint has of visits under way; KeyError or ValueError where it lacks something."""
    held: dict[int, dict[str, Tensors]] = {each["client"]: {} for each in numbers}
    for name, tensor in tensors.items():
        first, _, rest = name.partition("/")
        if first != PENDING:
            continue
        client, kind, leaf = rest.split("/", 2)
        held[int(client)].setdefault(kind, {})[leaf] = placed(kind, leaf, tensor)
    return tuple(_visit(each, held[each["client"]]) for each in numbers)


def _visit(numbers: Mapping[str, Any], parts: Mapping[str, Tensors]) -> Pending:
    left = ClientState(**{kind: parts.get(kind, {}) for kind in KINDS}) if numbers["leaves"] else None
    return Pending(
        **{name: numbers[name] for name in _NUMBERS},
        loss=parts[""]["loss"],
        finite=parts[""]["finite"],
        sent=parts[_SENT],
        left=left,
    )
