"""What every engine offers, and what it gives a piece of work to stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from torso.data import Federation
from torso.data.augment import Lens, augmentations
from torso.data.batches import Deck
from torso.learn.gradients import gradients
from torso.learn.local import Classroom
from torso.learn.meeting import Meeting
from torso.learn.recorded import Recorder
from torso.nets import Network, Tensors, skeleton, smallest_map
from torso.nets.dual import DualHead
from torso.personal.models import models_of
from torso.precision import precision_of
from torso.registry import Registry

if TYPE_CHECKING:
    from torso.config import RunConfig

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SERVER = -1
"""The server learns like a client when it has data of its own (spec 3.3); this is its number."""


@dataclass(frozen=True)
class Desk:
    """One worker's place: a network without weights of its own (functional calls are not thread-safe) and the data."""

    room: Classroom
    federation: Federation

    @classmethod
    def at(
        cls,
        net: Network,
        federation: Federation,
        precision: str = "auto",
        recorded: bool = False,
        meeting: Meeting | None = None,
    ) -> Desk:
        """`recorded`: gradients are recorded once and replayed, where the device can (CUDA graphs)."""
        device = federation.device
        room = Classroom(
            net=skeleton(net),
            classes=federation.classes,
            lens=Lens.of(federation.mean, federation.std, device),
            change=augmentations[federation.augment],
            skip_single=smallest_map(net, federation.image) == 1,
            precision=precision_of(precision, device),
            recorder=Recorder(gradients, frozen=net.frozen)
            if recorded and device.type == "cuda" and net.body.native
            else None,
            meeting=meeting,
        )
        return cls(room, federation)

    def train_deck(self, clients: Sequence[int]) -> Deck:
        """The training samples of G clients; the server's own where the client is SERVER."""
        split = self.federation.train
        rows = [self.federation.server_rows if k == SERVER else split.rows(k) for k in clients]
        return Deck.of(split.images, split.labels, rows, clients)

    def visit_deck(self, clients: Sequence[int], with_meta: bool) -> Deck:
        """What G clients learn from: their own samples, and those that everybody got where the method says so."""
        deck = self.train_deck(clients)
        return deck.joined(self.federation.meta_rows) if with_meta else deck

    def meta_deck(self, clients: Sequence[int]) -> Deck:
        """The samples that everybody got from the server, once for each of G clients."""
        split = self.federation.train
        return Deck.of(split.images, split.labels, [self.federation.meta_rows] * len(clients), clients)

    def models(self, model: Tensors, private: Mapping[int, Tensors], clients: Sequence[int]) -> Tensors:
        """The models that G clients hold, stacked [G, *], with what their heads must know of them."""
        models = models_of(model, private, clients)
        if isinstance(self.room.net.head, DualHead):
            models |= self.room.net.facts(self.train_deck(clients).class_counts(self.federation.classes))
        return models

    def test_deck(self, clients: Sequence[int]) -> Deck:
        split = self.federation.test
        return Deck.of(split.images, split.labels, [split.rows(k) for k in clients], clients)

    def whole_test(self, start: int, stop: int) -> Deck:
        """A stretch of the whole test set, in its fixed random order, as the deck of nobody in particular."""
        split = self.federation.test
        return Deck.of(split.images, split.labels, [self.federation.test_order[start:stop]], [SERVER])


class Work(Protocol[T_co]):
    """What is done with a group of clients: a pure function of the desk and their numbers."""

    def __call__(self, desk: Desk, clients: Sequence[int]) -> T_co: ...


@runtime_checkable
class Narrows(Protocol):
    """Work that knows what some of the clients need of it, so that it travels light. Other work travels whole."""

    def for_clients(self, clients: Sequence[int]) -> Any:
        """The same for these clients; made where all clients' tensors are."""
        ...


@runtime_checkable
class Sums(Protocol):
    """Work whose results add up: those of several groups become one before it travels, and any order will do."""

    def costs(self, federation: Federation, clients: Sequence[int]) -> Sequence[float]:
        """How long the clients take, in any unit: what a fair share is judged by."""
        ...

    def merged(self, parts: Iterable[Any]) -> Any:
        """The results of several groups as one, added in their order as they come."""
        ...


@runtime_checkable
class Repairs(Protocol):
    """An engine whose workers can be lost and replaced."""

    def repaired(self) -> tuple[str, ...]:
        """What was lost and done again since somebody last asked, in words."""
        ...


class Engine(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def map(self, work: Work[T], clients: Sequence[int]) -> Iterator[T]:
        """Results of groups of clients, in the order of `clients` whatever the number of workers.

        Where the work is one that `Sums`, a group may be any of the clients, and the order any fixed one."""
        ...


EngineFactory = Callable[[Network, Federation, "RunConfig"], Engine]
"""(network, federation, the run section of a config) → where clients run."""
engines: Registry[EngineFactory] = Registry("run.engine")
