"""Client states on a cluster: they stay in Ray's object store, and the driver holds handles on them.

A worker puts the states of its share into one object or, if they are large, into one object per client, so that a state
that is no longer needed does not keep the others in memory. The driver owns the objects, so they outlive the worker. If
a machine is lost, the objects in its memory are lost too, and the run ends at its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import ray
import torch
from ray.exceptions import ObjectLostError

from torso.engine.payloads import Payload, read
from torso.errors import NoWorkerLeft
from torso.personal.store import ClientState, StateHandle, Store

LARGE = 1 << 20  # bytes; if client states are at least as large, each becomes a separate object


@runtime_checkable
class LeavesStates(Protocol):
    """Work whose results have a field `left`: the new state of each client."""

    leaves: bool


@dataclass(frozen=True)
class RayStateHandle(StateHandle):
    """A handle on one client's state in Ray's object store."""

    client: int
    where: Any  # an ObjectRef of a payload with the states of this client and possibly others

    def fetch(self) -> ClientState:
        """The state, on the CPU of this process. The driver needs it for a checkpoint, or at the end of a run."""
        (payload,) = fetch_payloads([self.where])
        return open_states(payload, torch.device("cpu"))[self.client]


@dataclass(frozen=True)
class StateIndex:
    """Stands for a client's state in a store that travels: the index of its object among the handles sent with it."""

    place: int


def fetch_payloads(refs: Sequence[Any]) -> list[Payload]:
    """The payloads behind ObjectRefs."""
    try:
        payloads: list[Payload] = ray.get(list(refs))
    except ObjectLostError:
        raise NoWorkerLeft("the states of some clients were lost with the machine that held them") from None
    return payloads


def open_states(payload: Payload, device: torch.device) -> dict[int, ClientState]:
    """The client states in a payload, on a device."""
    states: dict[int, ClientState] = read(payload.text, {}, payload.packed.unload(device))
    return states


def with_state_indices(store: Store | None, clients: Sequence[int]) -> tuple[Store | None, list[Any]]:
    """The store of some clients in the form in which it is sent, and the ObjectRefs that it refers to by index."""
    if store is None:
        return None, []
    mine = store.of(clients)
    indices: dict[Any, int] = {}  # ObjectRef -> its index

    def with_indices(entries: Mapping[int, Any]) -> dict[int, Any]:
        replaced = dict(entries)
        for client, entry in entries.items():
            if isinstance(entry, RayStateHandle):
                replaced[client] = StateIndex(indices.setdefault(entry.where, len(indices)))
        return replaced

    entries = with_indices(mine.entries)
    later = None if mine.later is None else Store(with_indices(mine.later.entries))
    return Store(entries, later), list(indices)


def split_states(left: Mapping[int, Any], clients: Sequence[int], into: int) -> list[dict[int, Any]]:
    """The states left to the clients of a share, divided into `into` pieces in the order of the clients."""
    pieces: list[dict[int, Any]] = [{} for _ in range(into)]
    for place, client in enumerate(clients):
        if client in left:
            pieces[place * into // len(clients)][client] = left[client]
    return pieces


def state_handles(refs: Sequence[Any], clients: Sequence[int]) -> dict[int, RayStateHandle]:
    """A handle for each client of a share whose states lie behind these ObjectRefs, divided as by `split_states`."""
    return {k: RayStateHandle(k, refs[place * len(refs) // len(clients)]) for place, k in enumerate(clients)}
