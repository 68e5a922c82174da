"""What every engine offers, and what it gives a piece of work to stand on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

import torch
from torch import Tensor

from torso.data import Federation, Roster
from torso.data.augment import Augmentation, FeatureLens, augmentations
from torso.data.batches import Deck
from torso.learn.features import passing_on
from torso.learn.gradients import gradients
from torso.learn.lockstep import Lockstep
from torso.learn.recorded import Recorder
from torso.learn.recorded_foreign import ForeignRecorder
from torso.learn.task import LocalContext
from torso.nets import Network, Tensors, skeleton, smallest_map
from torso.nets.compiled import Compile
from torso.nets.dual import DualHead
from torso.personal.models import with_own
from torso.personal.store import ClientState, Store
from torso.precision import precision_of
from torso.registry import Registry

if TYPE_CHECKING:
    from torso.config import RunConfig

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SERVER = -1
"""The server learns like a client when it has data of its own (spec 3.3); this is its number."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features [n, d] of a federation's samples under one body. None: nobody has computed those of the split.

    `key`: equal where the tensors are."""

    key: str
    size: int  # d
    train: Tensor | None = None
    test: Tensor | None = None


@dataclass(frozen=True)
class Workspace:
    """One worker's place: a network without weights of its own (functional calls are not thread-safe) and the data."""

    context: LocalContext
    federation: Federation
    store: Store = field(default_factory=Store)  # of the clients that it works for
    recorded: bool = False  # whether gradients are recorded, where the device can
    _on_features: dict[str, Workspace] = field(default_factory=dict, repr=False, compare=False)  # the last, by its key
    _held: dict[tuple[int, ...], list[ClientState]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def at(
        cls,
        net: Network,
        federation: Federation,
        precision: str = "auto",
        recorded: bool = False,
        lockstep: Lockstep | None = None,
        compiles: Compile = "auto",
        exact: bool = False,
    ) -> Workspace:
        """`recorded`: gradients are recorded once and replayed, where the device can (CUDA graphs); `compiles`: whether
        a body that is not Torso's is compiled before; `exact`: clients of a stack have the bits that each has alone,
        where the network can."""
        device = federation.device
        context = LocalContext(
            net=skeleton(net, device),
            classes=federation.classes,
            lens=federation.input.lens(device).for_body(net.body.trims),
            change=augmentations[federation.augment],
            skip_single=smallest_map(net, federation.input) == 1,
            precision=precision_of(precision, device),
            recorder=_recorder(net, compiles) if recorded and device.type == "cuda" else None,
            lockstep=lockstep,
            exact=exact,
        )
        return cls(context, federation, recorded=recorded)

    def on_features(self, features: Features) -> Workspace:
        """The same place with features instead of samples, and with a body that passes them on."""
        if features.key not in self._on_features:
            self._on_features.clear()  # one body at a time
            self._on_features[features.key] = self._moved_on(features)
        return replace(self._on_features[features.key], store=self.store)

    def _moved_on(self, features: Features) -> Workspace:
        net, data = passing_on(self.context.net, features.size), self.federation
        nothing = data.train.labels.new_empty(0, features.size, dtype=torch.float32)
        train, test = (nothing if part is None else part for part in (features.train, features.test))
        records = self.recorded and self.federation.device.type == "cuda"
        context = replace(
            self.context,
            net=net,
            lens=FeatureLens(),
            change=Augmentation(),
            recorder=Recorder(gradients, frozen=net.frozen) if records else None,
        )
        moved = replace(data, train=replace(data.train, samples=train), test=replace(data.test, samples=test))
        return Workspace(context, moved, recorded=self.recorded)

    def holding(self, store: Store | None) -> Workspace:
        """The same place with what clients hold."""
        return replace(self, store=Store() if store is None else store)

    def held(self, clients: Sequence[int]) -> list[ClientState]:
        """What each of G clients holds: looked up once, though a visit asks for it several times."""
        asked = tuple(clients)
        if asked not in self._held:
            self._held.clear()  # one group at a time
            self._held[asked] = self.store.states(asked)
        return self._held[asked]

    def samples(self, clients: Sequence[int]) -> tuple[int, ...]:
        """Training samples of each client; of the server its own."""
        if SERVER in clients:
            return (len(self.federation.server_rows),)
        sizes: list[int] = self.federation.train.sizes_of(clients).tolist()
        return tuple(sizes)

    def train_deck(self, clients: Sequence[int]) -> Deck:
        """The training samples of G clients; the server's own where the client is SERVER."""
        split = self.federation.train
        if SERVER in clients:
            return Deck.of(split.samples, split.labels, [self.federation.server_rows], clients)
        return split.deck(clients)

    def visit_deck(self, clients: Sequence[int], with_meta: bool) -> Deck:
        """What G clients learn from: their own samples, and those that everybody got where the method says so."""
        deck = self.train_deck(clients)
        return deck.joined(self.federation.meta_rows) if with_meta else deck

    def meta_deck(self, clients: Sequence[int]) -> Deck:
        """The samples that everybody got from the server, once for each of G clients."""
        split = self.federation.train
        return Deck.of(split.samples, split.labels, [self.federation.meta_rows] * len(clients), clients)

    def models(self, model: Tensors, clients: Sequence[int], kept: bool = True) -> Tensors:
        """The models that G clients hold, stacked [G, *], with what their heads must know of them.

        `kept`: with the parts that each keeps; without, all hold the same."""
        if self.context.on_features:
            model = {name: tensor for name, tensor in model.items() if not name.startswith("body.")}
        models = with_own(model, [state.kept for state in self.held(clients)] if kept else [{}] * len(clients))
        if isinstance(self.context.net.head, DualHead):
            models |= self.context.net.facts(self.train_deck(clients).class_counts(self.federation.classes), models)
        return models

    def test_deck(self, clients: Sequence[int]) -> Deck:
        return self.federation.test.deck(clients)

    def marked_deck(self, clients: Sequence[int]) -> Deck:
        """The clients' test samples with the attackers' mark, labelled as attackers want them to be taken."""
        split = self.federation.marked
        if split is None:
            empty = self.federation.test
            return Deck.of(empty.samples, empty.labels, [empty.order[:0]] * len(clients), clients)
        return split.deck(clients)

    def test_stretches(self, numbers: Sequence[int], each: int) -> Deck:
        """Stretches of so many samples of the whole test set, in its fixed random order, side by side by their numbers;
        nobody's in particular."""
        split, order = self.federation.test, self.federation.test_order
        rows = [order[number * each : (number + 1) * each] for number in numbers]
        return Deck.of(split.samples, split.labels, rows, [SERVER] * len(rows))


def _recorder(net: Network, compiles: Compile) -> Recorder:
    if net.body.keyed:
        return ForeignRecorder(gradients, frozen=net.frozen, compiles=compiles)
    return Recorder(gradients, frozen=net.frozen)


class Work(Protocol[T_co]):
    """What is done with a group of clients: a pure function of the workspace and their numbers."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> T_co: ...


@runtime_checkable
class Narrows(Protocol):
    """Work that is told different things for different clients. Other work travels whole."""

    def for_clients(self, clients: Sequence[int]) -> Any:
        """The same, without what is meant for others."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """Work that takes longer for some clients than for others."""

    def costs(self, roster: Roster, clients: Sequence[int]) -> Sequence[float]:
        """How long the clients take, in any unit: what a fair share is judged by."""
        ...


class Sum(Protocol):
    """What takes in results of groups of clients, in the order of the clients."""

    def take(self, part: Any) -> None: ...


S = TypeVar("S", bound=Sum)


@runtime_checkable
class AddsUp(Protocol):
    """An engine that has results added up where they are made, one worker after the other, in the order of the clients:
    the same sum to the bit, and one that travels instead of all its parts."""

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S: ...


def _adds_up(engine: Any) -> TypeGuard[AddsUp]:
    return _offers(type(engine), AddsUp)


def add_up(
    engine: Engine, work: Work[Any], clients: Sequence[int], store: Store | None, total: S, here: bool = False
) -> S:
    """Do a piece of work for clients and take in its results, in their order.

    `here`: not where they are made, since the total keeps the single results and would travel with all of them."""
    if _adds_up(engine) and not here:
        return engine.add_up(work, clients, store, total)
    for part in engine.map(work, clients, store):
        total.take(part)
        del part  # the next group wants its memory
    return total


@runtime_checkable
class Repairs(Protocol):
    """An engine whose workers can be lost and replaced."""

    def repaired(self) -> tuple[str, ...]:
        """What was lost and done again since somebody last asked, in words."""
        ...


@runtime_checkable
class MayEndUs(Protocol):
    """An engine on which this process can end at once, with no exception (Ray ends it when its own processes die)."""

    def last_words(self, how: str) -> None:
        """What the user then reads: `how` to continue."""
        ...


@runtime_checkable
class ComeAndGo(Protocol):
    """An engine whose clients are not always there. Of those that it is asked to work for, it gives the results of
    those who answer."""

    def present(self) -> Collection[int]:
        """Who can be asked now. It waits a while where too few can."""
        ...

    def counted(self, round: int, clients: Sequence[int]) -> None:
        """A round is over, and the answers of these clients have become part of it."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """An engine that has work done on a device while the host goes on."""

    def may_look_ahead(self) -> bool:
        """Whether the next round may be asked of it before this one's numbers are read: it is done again, from the
        right state, should these be other than expected."""
        ...


_known: dict[tuple[Any, Any], bool] = {}


def _offers(kind: Any, what: Any) -> bool:
    """Whether objects of a class have all that a protocol names: looked up once, not several times a round."""
    if (kind, what) not in _known:
        _known[kind, what] = issubclass(kind, what)
    return _known[kind, what]


def comes_and_goes(engine: Any) -> TypeGuard[ComeAndGo]:
    return _offers(type(engine), ComeAndGo)


def looks_ahead(engine: Any) -> bool:
    """Whether the server may move, and the next round begin, before the numbers of a round are read."""
    return _offers(type(engine), LooksAhead) and bool(engine.may_look_ahead())


def repairs(engine: Any) -> TypeGuard[Repairs]:
    return _offers(type(engine), Repairs)


class Engine(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """Results of groups of clients, in the order of `clients` whatever the number of workers.

        `store`: what the clients hold, which the work finds in its workspace wherever that is."""
        ...


EngineFactory = Callable[[Network, Federation, "RunConfig"], Engine]
"""(network, federation, the run section of a config) → where clients run."""
engines: Registry[EngineFactory] = Registry("run.engine")
