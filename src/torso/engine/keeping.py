"""What clients hold, on a cluster: it lies in Ray's object store, and the driver has handles that it does not open.

A worker leaves the states of its share in one object or, where they are large, in several, so that one that a client no
longer needs does not keep the others' memory. The driver owns the objects, so they outlive the worker; those that lie
on a machine that is lost are lost with it, and the run ends at its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import ray
import torch
from ray.exceptions import ObjectLostError

from torso.engine.parcels import Parcel, read
from torso.errors import PlaceLost
from torso.personal.store import ClientState, Elsewhere, Store

LARGE = 1 << 20  # bytes of one client's state from which on it has an object of its own


@runtime_checkable
class Leaves(Protocol):
    """Work whose results have a field `left`: what each client goes on with."""

    leaves: bool


@dataclass(frozen=True)
class KeptOnRay(Elsewhere):
    """A handle on one client's state."""

    client: int
    where: Any  # an ObjectRef of a parcel

    def fetch(self) -> ClientState:
        """Here: for a checkpoint, or at the end of a run."""
        (parcel,) = fetched([self.where])
        return open_states(parcel, torch.device("cpu"))[self.client]


@dataclass(frozen=True)
class Lies:
    """Where a client's state lies, among the handles that travel beside a piece of work."""

    place: int


def fetched(refs: Sequence[Any]) -> list[Parcel]:
    """The parcels that handles stand for."""
    try:
        parcels: list[Parcel] = ray.get(list(refs))
    except ObjectLostError:
        raise PlaceLost("what some clients held was lost with the machine that it lay on") from None
    return parcels


def open_states(parcel: Parcel, device: torch.device) -> dict[int, ClientState]:
    states: dict[int, ClientState] = read(parcel.text, {}, parcel.cargo.unload(device))
    return states


def closed(store: Store | None, clients: Sequence[int]) -> tuple[Store | None, list[Any]]:
    """A store for some clients as it travels, and the handles that it refers to."""
    if store is None:
        return None, []
    mine, handles = store.of(clients), dict[Any, int]()

    def some(entries: Mapping[int, Any]) -> dict[int, Any]:
        return {
            k: Lies(handles.setdefault(entry.where, len(handles))) if isinstance(entry, KeptOnRay) else entry
            for k, entry in entries.items()
        }

    travelling = Store(some(mine.entries), None if mine.later is None else Store(some(mine.later.entries)))
    return travelling, list(handles)


def pieces_of(left: Mapping[int, Any], clients: Sequence[int], into: int) -> list[dict[int, Any]]:
    """What was left to the clients of a share, in so many pieces: one after the other."""
    dealt: list[dict[int, Any]] = [{} for _ in range(into)]
    for place, client in enumerate(clients):
        if client in left:
            dealt[place * into // len(clients)][client] = left[client]
    return dealt


def handles_on(refs: Sequence[Any], clients: Sequence[int]) -> dict[int, KeptOnRay]:
    """Handles on what a share may have left its clients, in as many pieces as there are references."""
    return {k: KeptOnRay(k, refs[place * len(refs) // len(clients)]) for place, k in enumerate(clients)}
