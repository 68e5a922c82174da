"""The clients' states between visits, and the store that has them.

In a simulation the states are in memory; on a cluster the workers keep them and the driver has handles; at a site it is
a file. Work for a client reads its state through `Store`; no other code looks inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from torso.many import ClientMap
from torso.nets import Tensors


@dataclass(frozen=True, slots=True, weakref_slot=True)  # slots save memory: there are many of them
class ClientState:
    """All that a client keeps between its visits; empty before the first one (spec 1.5)."""

    kept: Tensors = field(default_factory=dict)  # parts of the model that stay on the client
    memory: Tensors = field(default_factory=dict)  # memory of its drift correction
    own: Tensors = field(default_factory=dict)  # tensors of a personal model that never travels
    notes: Tensors = field(default_factory=dict)  # what its step and its personal strategy remember

    def __bool__(self) -> bool:
        return bool(self.kept or self.memory or self.own or self.notes)

    def updated(self, new: ClientState) -> ClientState:
        """The state after a visit: `new` for the fields that the visit filled, this state for the others."""
        return ClientState(
            new.kept or self.kept, new.memory or self.memory, new.own or self.own, new.notes or self.notes
        )


KINDS = tuple(each.name for each in fields(ClientState))
EMPTY_STATE = ClientState()


class StateHandle(ABC):
    """A handle on the state of a client that is not in this process."""

    @abstractmethod
    def fetch(self) -> ClientState:
        """Bring the state into this process."""


class Store(Mapping[int, ClientState]):
    """The states of all clients after a round. A client without an entry has the state `EMPTY_STATE`. It is never
    changed: a round makes a new store.

    `later`: the states of the same clients one round later, for analyses that repeat that round."""

    def __init__(
        self, entries: Mapping[int, ClientState | StateHandle] | None = None, later: Store | None = None
    ) -> None:
        self.entries: ClientMap[ClientState | StateHandle] = ClientMap(entries)
        self.later = later

    def __getitem__(self, client: int) -> ClientState:
        found: ClientState | StateHandle = self.entries.get(client, EMPTY_STATE)
        return found if isinstance(found, ClientState) else found.fetch()

    def states(self, clients: Iterable[int]) -> list[ClientState]:
        """The states of some clients, in their order."""
        found = [self.entries.get(client, EMPTY_STATE) for client in clients]
        return [each if isinstance(each, ClientState) else each.fetch() for each in found]

    def __contains__(self, client: object) -> bool:
        return client in self.entries

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def updated(self, left: Mapping[int, ClientState | StateHandle]) -> Store:
        """The store after a round. `left`: new states, or handles on them, of the clients that have one. Takes
        time in proportion to their number, not to that of all clients."""
        return Store(self.entries | left) if left else self

    def of(self, clients: Iterable[int]) -> Store:
        """A store with the entries of some clients."""
        clients = tuple(clients)
        later = None if self.later is None else self.later.of(clients)
        return Store({client: self.entries[client] for client in clients if client in self.entries}, later)

    def of_kind(self, kind: str) -> dict[int, Tensors]:
        """The tensors of one kind (`kept`, `memory`, `own`, `notes`) of the clients that hold any."""
        return {client: held for client in self.entries if (held := getattr(self[client], kind))}

    def here(self) -> Store:
        """A store with all states fetched into this process."""
        return Store({client: self[client] for client in self.entries})
