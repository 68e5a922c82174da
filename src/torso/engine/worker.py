"""A worker process of the Ray engine: it holds the data, the network, an ordinary engine and a cache of tensors."""

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
from torso.engine.payloads import Label, LabelCounter, PackedTensors, Payload, complete_payload, read, write
from torso.engine.state_handles import StateIndex, fetch_payloads, open_states, split_states
from torso.personal.store import Store
from torso.registry import plugin_entries, register_plugin_entries

if TYPE_CHECKING:
    from torso.config import RunConfig


@dataclass(frozen=True)
class DriverEnvironment:
    """The driver's environment as a worker process needs it, so that the same imports and names work there."""

    folder: str  # the driver's working directory
    path: tuple[str, ...]  # its sys.path
    things: bytes  # a pickle of the methods and parts that the user has registered

    @classmethod
    def here(cls) -> DriverEnvironment:
        """The environment of this process."""
        return cls(os.getcwd(), tuple(sys.path), cloudpickle.dumps(plugin_entries()))

    def apply(self) -> None:
        """Set this process up like the driver."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        sys.path += [folder for folder in self.path if folder not in sys.path]
        register_plugin_entries(cloudpickle.loads(self.things))


class Worker:
    """A Ray actor that does shares of work.

    `number`: the first part of the labels that it makes. No other worker has it, not even one that it replaces."""

    def __init__(
        self, number: int, environment: DriverEnvironment, net: bytes, data: Payload, run: RunConfig, device: str
    ) -> None:
        environment.apply()
        self.device = torch.device(device)
        # without a copy: on CPU the samples stay in the object store, which all workers of a machine share
        federation: Federation = read(data.text, {}, data.packed.unload(self.device, copy=False))
        network = cloudpickle.loads(net)
        self.engine = engines["auto"](network, federation, run).__enter__()
        self.held = {"federation": federation, "net": network, "engine": self.engine}
        self.number = number
        self.numbers = count()
        self.cache: dict[Label, torch.Tensor] = {}  # tensors that the driver may refer to by their label
        self.waiting: dict[int, list[Any]] = {}  # ticket -> results of a share that will be added up

    def hello(self) -> tuple[int, str]:
        """Process id and host. The answer also tells that the worker has started."""
        return os.getpid(), socket.gethostname()

    def do(
        self, payload: Payload, common: PackedTensors, held: Sequence[Any], into: int, ticket: int = 0
    ) -> Payload | list[Payload]:
        """Do a share of work. Returns the results and, in `into` more payloads, the states that it leaves its clients.

        `common`: tensors that were sent to several workers at once. `held`: ObjectRefs of what the clients hold. With a
        `ticket` the results stay here until `add_up`."""
        for label in payload.gone:
            self.cache.pop(label, None)
        for packed in (common, payload.packed):
            self.cache |= packed.unload(self.device)
        work, clients, store = read(payload.text, self.held, self.cache)
        store = self._opened(store, held)
        results = list(self.engine.map(work, clients, store))
        left: dict[int, Any] = {}
        if into:
            left = {client: state for result in results for client, state in result.left.items()}
            results = [replace(result, left=dict.fromkeys(result.left)) for result in results]
        states = [complete_payload(piece) for piece in split_states(left, clients, into)]
        clients_per_piece = max(len(clients) // max(into, 1), 1)
        state_bytes = max((piece.size for piece in states), default=0) // clients_per_piece
        if ticket:
            self.waiting[ticket] = results
            results = []
        text, made = write((results, state_bytes), self.held, LabelCounter(self.number, self.numbers))
        self.cache |= made
        answer = Payload(text, PackedTensors.of(made))
        return [answer, *states] if into else answer

    def add_up(self, ticket: int, payload: Payload) -> Payload:
        """The sum, with the results that wait here under a ticket added to it."""
        total = read(payload.text, self.held, payload.packed.unload(self.device))
        for result in self.waiting.pop(ticket):
            total.take(result)
        return complete_payload(total, self.held)

    def _opened(self, store: Store | None, held: Sequence[Any]) -> Store | None:
        """The store with the states themselves in place of the indices of their ObjectRefs."""
        if store is None:
            return None
        opened = [open_states(payload, self.device) for payload in fetch_payloads(held)]

        def with_states(entries: Mapping[int, Any]) -> dict[int, Any]:
            return {k: opened[at.place][k] if isinstance(at, StateIndex) else at for k, at in entries.items()}

        later = None if store.later is None else Store(with_states(store.later.entries))
        return Store(with_states(store.entries), later)
