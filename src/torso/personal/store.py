"""What clients hold between their visits, and where it is kept.

In a simulation it is in memory; on a cluster the workers' side keeps it and the driver has handles; at a site it is a
file. Whoever works for a client reads it through `Store`, and nobody else looks inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from torso.many import ClientMap
from torso.nets import Tensors


@dataclass(frozen=True, slots=True, weakref_slot=True)  # there are many of them
class ClientState:
    """What one client holds; empty before its first visit (spec 1.5)."""

    kept: Tensors = field(default_factory=dict)  # parts of the model that stay with it
    memory: Tensors = field(default_factory=dict)  # what its drift correction remembers
    own: Tensors = field(default_factory=dict)  # a model of its own that never travels
    notes: Tensors = field(default_factory=dict)  # what its step, or its way to a model of its own, remembers

    def __bool__(self) -> bool:
        return bool(self.kept or self.memory or self.own or self.notes)

    def updated(self, new: ClientState) -> ClientState:
        """After a visit: each kind that the visit left something of, as it left it; the others as they were."""
        return ClientState(
            new.kept or self.kept, new.memory or self.memory, new.own or self.own, new.notes or self.notes
        )


KINDS = tuple(each.name for each in fields(ClientState))
NOTHING = ClientState()


class Elsewhere(ABC):
    """The state of a client that is not in this process."""

    @abstractmethod
    def fetch(self) -> ClientState: ...


class Store(Mapping[int, ClientState]):
    """The states of clients after some round; one that holds nothing is `NOTHING`. A round makes another store.

    `later`: what the same clients hold a round later, for those who look at that round once more."""

    def __init__(
        self, entries: Mapping[int, ClientState | Elsewhere] | None = None, later: Store | None = None
    ) -> None:
        self.entries: ClientMap[ClientState | Elsewhere] = ClientMap(entries)
        self.later = later

    def __getitem__(self, client: int) -> ClientState:
        found: ClientState | Elsewhere = self.entries.get(client, NOTHING)
        return found if isinstance(found, ClientState) else found.fetch()

    def states(self, clients: Iterable[int]) -> list[ClientState]:
        """The states of some clients, in their order."""
        found = [self.entries.get(client, NOTHING) for client in clients]
        return [each if isinstance(each, ClientState) else each.fetch() for each in found]

    def __contains__(self, client: object) -> bool:
        return client in self.entries

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def updated(self, left: Mapping[int, ClientState | Elsewhere]) -> Store:
        """After a round that left these clients something, in time by their number."""
        return Store(self.entries | left) if left else self

    def of(self, clients: Iterable[int]) -> Store:
        """The store of some clients alone."""
        clients = tuple(clients)
        later = None if self.later is None else self.later.of(clients)
        return Store({client: self.entries[client] for client in clients if client in self.entries}, later)

    def of_kind(self, kind: str) -> dict[int, Tensors]:
        """The tensors of one kind (`kept`, `memory`, `own`, `notes`) of the clients that hold any."""
        return {client: held for client in self.entries if (held := getattr(self[client], kind))}

    def here(self) -> Store:
        """This store with everything fetched into this process."""
        return Store({client: self[client] for client in self.entries})
