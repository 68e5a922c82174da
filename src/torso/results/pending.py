"""The unfinished visits of an asynchronous run in a checkpoint: tensors `pending/CLIENT/…`, and numbers in its JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torso.nets import Tensors
from torso.personal.state import PendingVisit
from torso.personal.store import KINDS, ClientState, StateHandle

PENDING = "pending"
_SENT = "sent"
_NUMBERS = ("client", "began", "arrives", "samples")
PlaceTensor = Callable[[str, str, Tensor], Tensor]
"""(kind, name, tensor of a file) → the tensor on the run's device, after a check that it fits."""


def tensors_of(pending: Iterable[PendingVisit]) -> Tensors:
    """The tensors of unfinished visits, by their names in a checkpoint."""
    found: Tensors = {}
    for visit in pending:
        parts: dict[str, Tensors] = {_SENT: visit.sent, "": {"loss": visit.loss, "finite": visit.finite}}
        left = visit.left.fetch() if isinstance(visit.left, StateHandle) else visit.left
        if left is not None:
            parts |= {kind: getattr(left, kind) for kind in KINDS}
        for kind, held in parts.items():
            found |= {f"{PENDING}/{visit.client}/{kind}/{name}": tensor for name, tensor in held.items()}
    return found


def numbers_of(pending: Iterable[PendingVisit]) -> list[dict[str, Any]]:
    """The numbers of unfinished visits, for the JSON of a checkpoint."""
    found = []
    for visit in pending:
        numbers = {name: getattr(visit, name) for name in _NUMBERS}
        found.append({**numbers, "leaves": visit.left is not None})
    return found


def read_pending(
    tensors: Tensors, numbers: Sequence[Mapping[str, Any]], placed: PlaceTensor
) -> tuple[PendingVisit, ...]:
    """The unfinished visits of a checkpoint; KeyError or ValueError if something is missing."""
    held: dict[int, dict[str, Tensors]] = {each["client"]: {} for each in numbers}
    for name, tensor in tensors.items():
        first, _, rest = name.partition("/")
        if first != PENDING:
            continue
        client, kind, leaf = rest.split("/", 2)
        held[int(client)].setdefault(kind, {})[leaf] = placed(kind, leaf, tensor)
    return tuple(_visit(each, held[each["client"]]) for each in numbers)


def _visit(numbers: Mapping[str, Any], parts: Mapping[str, Tensors]) -> PendingVisit:
    left = ClientState(**{kind: parts.get(kind, {}) for kind in KINDS}) if numbers["leaves"] else None
    return PendingVisit(
        **{name: numbers[name] for name in _NUMBERS},
        loss=parts[""]["loss"],
        finite=parts[""]["finite"],
        sent=parts[_SENT],
        left=left,
    )
