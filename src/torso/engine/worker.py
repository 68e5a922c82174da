"""A worker of the cluster: the data and the network once, an ordinary engine, the tensors it has been sent or made."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from ray import cloudpickle

from torso.data import Federation
from torso.engine.base import engines
from torso.engine.keeping import Lies, fetched, open_states, pieces_of
from torso.engine.parcels import Cargo, Label, Numbered, Parcel, read, whole, write
from torso.personal.store import Store
from torso.registry import guests, welcome

if TYPE_CHECKING:
    from torso.config import RunConfig


@dataclass(frozen=True)
class Home:
    """What a process has to know of the driver's: where it stands, its modules, what others have registered."""

    folder: str
    path: tuple[str, ...]
    things: bytes

    @classmethod
    def here(cls) -> Home:
        return cls(os.getcwd(), tuple(sys.path), cloudpickle.dumps(guests()))

    def move_in(self) -> None:
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        sys.path += [folder for folder in self.path if folder not in sys.path]
        welcome(cloudpickle.loads(self.things))


class Worker:
    """`number` is its own: no other worker, nor the one that it replaces, makes the same labels."""

    def __init__(self, number: int, home: Home, net: bytes, data: Parcel, run: RunConfig, device: str) -> None:
        home.move_in()
        where = torch.device(device)
        # on CPU the images stay in the object store: workers of one machine share them
        federation: Federation = read(data.text, {}, data.cargo.unload(where, copy=False))
        network = cloudpickle.loads(net)
        self.engine = engines["auto"](network, federation, run).__enter__()
        self.held = {"federation": federation, "net": network, "engine": self.engine}
        self.number, self.numbers, self.device = number, count(), where
        self.shelf: dict[Label, torch.Tensor] = {}
        self.waiting: dict[int, list[Any]] = {}  # results of shares that are to be added up

    def hello(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def do(
        self, parcel: Parcel, common: Cargo, held: Sequence[Any], into: int, ticket: int = 0
    ) -> Parcel | list[Parcel]:
        """The results of some clients; behind them, in `into` parcels, what the work has left those clients.

        `held` are handles on what clients hold, looked at here. With a `ticket` the results wait here for `add_up`."""
        for label in parcel.gone:
            self.shelf.pop(label, None)
        for cargo in (common, parcel.cargo):
            self.shelf |= cargo.unload(self.device)
        work, clients, store = read(parcel.text, self.held, self.shelf)
        store = self._opened(store, held)
        results, left = list(self.engine.map(work, clients, store)), dict[int, Any]()
        if into:
            left = {client: state for result in results for client, state in result.left.items()}
            results = [replace(result, left=dict.fromkeys(result.left)) for result in results]
        states = [whole(piece) for piece in pieces_of(left, clients, into)]
        size = max((parcel.size for parcel in states), default=0) // max(len(clients) // max(into, 1), 1)
        if ticket:
            self.waiting[ticket], results = results, []
        text, made = write((results, size), self.held, Numbered(self.number, self.numbers))
        self.shelf |= made
        answer = Parcel(text, Cargo.of(made))
        return [answer, *states] if into else answer

    def add_up(self, ticket: int, parcel: Parcel) -> Parcel:
        """Take the results that wait here into a sum, and pass it on."""
        total = read(parcel.text, self.held, parcel.cargo.unload(self.device))
        for result in self.waiting.pop(ticket):
            total.take(result)
        return whole(total, self.held)

    def _opened(self, store: Store | None, held: Sequence[Any]) -> Store | None:
        """The store with what its handles stand for."""
        if store is None:
            return None
        opened = [open_states(parcel, self.device) for parcel in fetched(held)]

        def some(entries: Mapping[int, Any]) -> dict[int, Any]:
            return {k: opened[at.place][k] if isinstance(at, Lies) else at for k, at in entries.items()}

        return Store(some(store.entries), None if store.later is None else Store(some(store.later.entries)))
