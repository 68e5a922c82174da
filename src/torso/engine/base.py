"""The `Engine` interface, what an engine or its work may support in addition, and the `Workspace` that work gets."""

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
"""The client number of the server, which trains like a client if it has data (spec 3.3)."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features [n, d] that one body computes for a federation's samples. A split is None if it was not computed."""

    key: str  # two objects with equal keys hold equal features
    size: int  # d
    train: Tensor | None = None
    test: Tensor | None = None


@dataclass(frozen=True)
class Workspace:
    """What one worker needs to run work: the data, what clients hold, and a network without weights.

    Each worker has its own network, because functional calls on one network are not thread-safe."""

    context: LocalContext
    federation: Federation
    store: Store = field(default_factory=Store)  # what the clients of the current work hold
    recorded: bool = False  # record gradients, if the device can
    _on_features: dict[str, Workspace] = field(default_factory=dict, repr=False, compare=False)  # the latest, by key
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
        """A workspace on the federation's device.

        `recorded`: record gradients once and replay them, if the device can (CUDA graphs).
        `compiles`: whether a body of another library is compiled before it is recorded.
        `exact`: a client gets the same bits in a stack as alone, if the network can guarantee it."""
        device = federation.device
        context = LocalContext(
            net=skeleton(net, device),
            classes=federation.classes,
            lens=federation.input.lens(device).for_body(net.body.trims),
            change=augmentations[federation.augment],
            skip_single=smallest_map(net, federation.input) == 1,
            precision=precision_of(precision, device),
            recorder=recorder_for(net, device, compiles) if recorded else None,
            lockstep=lockstep,
            exact=exact,
        )
        return cls(context, federation, recorded=recorded)

    def on_features(self, features: Features) -> Workspace:
        """This workspace with features in place of samples, and with a body that returns its input unchanged."""
        if features.key not in self._on_features:
            self._on_features.clear()  # keep those of one body only
            self._on_features[features.key] = self._with_features(features)
        return replace(self._on_features[features.key], store=self.store)

    def _with_features(self, features: Features) -> Workspace:
        net = passing_on(self.context.net, features.size)
        data = self.federation
        empty = data.train.labels.new_empty(0, features.size, dtype=torch.float32)
        train = empty if features.train is None else features.train
        test = empty if features.test is None else features.test
        context = replace(
            self.context,
            net=net,
            lens=FeatureLens(),
            change=Augmentation(),
            recorder=recorder_for(net, data.device) if self.recorded else None,
        )
        federation = replace(data, train=replace(data.train, samples=train), test=replace(data.test, samples=test))
        return Workspace(context, federation, recorded=self.recorded)

    def holding(self, store: Store | None) -> Workspace:
        """This workspace with another store (None: an empty one)."""
        return replace(self, store=Store() if store is None else store)

    def held(self, clients: Sequence[int]) -> list[ClientState]:
        """What each of G clients holds. Cached, because a visit asks for it several times."""
        key = tuple(clients)
        if key not in self._held:
            self._held.clear()  # keep one group only
            self._held[key] = self.store.states(key)
        return self._held[key]

    def samples(self, clients: Sequence[int]) -> tuple[int, ...]:
        """The number of training samples of each client, or of the server (SERVER)."""
        if SERVER in clients:
            return (len(self.federation.server_rows),)
        sizes: list[int] = self.federation.train.sizes_of(clients).tolist()
        return tuple(sizes)

    def train_deck(self, clients: Sequence[int]) -> Deck:
        """The training samples of G clients, or the server's own samples if the client is SERVER."""
        split = self.federation.train
        if SERVER in clients:
            return Deck.of(split.samples, split.labels, [self.federation.server_rows], clients)
        return split.deck(clients)

    def visit_deck(self, clients: Sequence[int], with_meta: bool) -> Deck:
        """The samples that G clients train on: their own and, `with_meta`, those that the server gave to all."""
        deck = self.train_deck(clients)
        return deck.with_rows(self.federation.meta_rows) if with_meta else deck

    def meta_deck(self, clients: Sequence[int]) -> Deck:
        """The samples that the server gave to all clients, repeated for each of G clients."""
        split = self.federation.train
        return Deck.of(split.samples, split.labels, [self.federation.meta_rows] * len(clients), clients)

    def models(self, model: Tensors, clients: Sequence[int], kept: bool = True) -> Tensors:
        """The models of G clients, stacked [G, *]; a dual head also gets the facts about its client that it needs.

        `kept`: with the parts that each client keeps. Without it, all G models are `model`."""
        if self.context.on_features:
            model = {name: tensor for name, tensor in model.items() if not name.startswith("body.")}
        models = with_own(model, [state.kept for state in self.held(clients)] if kept else [{}] * len(clients))
        if isinstance(self.context.net.head, DualHead):
            models |= self.context.net.facts(self.train_deck(clients).class_counts(self.federation.classes), models)
        return models

    def test_deck(self, clients: Sequence[int]) -> Deck:
        return self.federation.test.deck(clients)

    def marked_deck(self, clients: Sequence[int]) -> Deck:
        """The clients' test samples with the attackers' trigger, labelled with the class that the attackers want."""
        split = self.federation.marked
        if split is None:
            empty = self.federation.test
            return Deck.of(empty.samples, empty.labels, [empty.order[:0]] * len(clients), clients)
        return split.deck(clients)

    def test_stretches(self, numbers: Sequence[int], each: int) -> Deck:
        """Blocks of `each` samples of the whole test set, chosen by number and stacked; they belong to no client.

        The test set is cut into blocks in its fixed random order."""
        split, order = self.federation.test, self.federation.test_order
        rows = [order[number * each : (number + 1) * each] for number in numbers]
        return Deck.of(split.samples, split.labels, rows, [SERVER] * len(rows))


def recorder_for(net: Network, device: torch.device, compiles: Compile = "auto") -> Recorder | None:
    """The recorder for a network on a device; None if the device cannot record."""
    if device.type != "cuda":
        return None
    if net.body.keyed:
        return ForeignRecorder(gradients, frozen=net.frozen, compiles=compiles)
    return Recorder(gradients, frozen=net.frozen)


class Work(Protocol[T_co]):
    """Work for a group of clients: a pure function of a workspace and the clients' numbers."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> T_co: ...


@runtime_checkable
class SupportsForClients(Protocol):
    """Work that holds different data for different clients. A cluster sends other work whole to every worker."""

    def for_clients(self, clients: Sequence[int]) -> Any:
        """This work with only the data for these clients."""
        ...


@runtime_checkable
class HasCosts(Protocol):
    """Work that takes longer for some clients than for others."""

    def costs(self, roster: Roster, clients: Sequence[int]) -> Sequence[float]:
        """How long each client takes, in any unit. A cluster divides the clients over its workers by it."""
        ...


class Sum(Protocol):
    """An accumulator of the results of groups of clients. It gets them in the order of the clients."""

    def take(self, part: Any) -> None: ...


S = TypeVar("S", bound=Sum)


@runtime_checkable
class SupportsAddUp(Protocol):
    """An engine that adds results up on its workers.

    The sum goes from worker to worker in the order of the clients, so it has the same bits as a sum on the driver, and
    only the sum travels instead of every result."""

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S: ...


def _adds_up(engine: Any) -> TypeGuard[SupportsAddUp]:
    return _offers(type(engine), SupportsAddUp)


def add_up(
    engine: Engine, work: Work[Any], clients: Sequence[int], store: Store | None, total: S, here: bool = False
) -> S:
    """Do work for clients and add its results to `total`, in the order of the clients.

    `here`: add up in this process. For a total that keeps the single results, which would all travel with it."""
    if _adds_up(engine) and not here:
        return engine.add_up(work, clients, store, total)
    for part in engine.map(work, clients, store):
        total.take(part)
        del part  # free its memory before the next group is computed
    return total


@runtime_checkable
class SupportsRepair(Protocol):
    """An engine whose workers can be lost and replaced."""

    def repaired(self) -> tuple[str, ...]:
        """A message for each share that was lost and done again since the last call."""
        ...


@runtime_checkable
class SupportsExitMessage(Protocol):
    """An engine that can end this process without an exception (Ray does so when one of Ray's own processes dies)."""

    def set_exit_message(self, how: str) -> None:
        """Set what the user reads if that happens: `how` to continue the run."""
        ...


@runtime_checkable
class HasAvailability(Protocol):
    """An engine with clients that are not always available. `map` gives the results of those that answer."""

    def available_clients(self) -> Collection[int]:
        """The clients that are available now. Waits for a while if they are too few."""
        ...

    def counted(self, round: int, clients: Sequence[int]) -> None:
        """Tell the engine that a round is over and that it includes the answers of these clients."""
        ...


@runtime_checkable
class SupportsLookAhead(Protocol):
    """An engine whose device computes while the host continues."""

    def may_look_ahead(self) -> bool:
        """Whether the next round may be started before the numbers of this round are read from the device.

        If those numbers turn out to be other than expected, the next round is done again from the right state."""
        ...


_known: dict[tuple[Any, Any], bool] = {}  # (class, protocol) -> whether the class has all that the protocol names


def _offers(kind: Any, protocol: Any) -> bool:
    """Whether a class implements a protocol. Cached: it is asked several times a round, and `issubclass` is slow."""
    if (kind, protocol) not in _known:
        _known[kind, protocol] = issubclass(kind, protocol)
    return _known[kind, protocol]


def has_availability(engine: Any) -> TypeGuard[HasAvailability]:
    """Whether the clients of an engine are not always available."""
    return _offers(type(engine), HasAvailability)


def can_look_ahead(engine: Any) -> bool:
    """Whether the next round may start on this engine before the numbers of a round are read from the device."""
    return _offers(type(engine), SupportsLookAhead) and bool(engine.may_look_ahead())


def supports_repair(engine: Any) -> TypeGuard[SupportsRepair]:
    """Whether an engine replaces workers that are lost."""
    return _offers(type(engine), SupportsRepair)


class Engine(Protocol):
    """Runs work for clients. It is a context manager: `map` may be called only inside its `with` block."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """The results of groups of clients, in the order of `clients` for any number of workers.

        `store`: what the clients hold. The work finds it as `workspace.store`, also on another machine."""
        ...


EngineFactory = Callable[[Network, Federation, "RunConfig"], Engine]
"""(network, federation, the run section of a config) → an engine."""
engines: Registry[EngineFactory] = Registry("run.engine")
