"""Personal strategies: which model a client begins a visit with, which it keeps, and how it gets its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from torso.kinds import Positive
from torso.learn.phases import Phase, phases
from torso.learn.task import LocalResult, LocalTask
from torso.nets import Network, Tensors
from torso.registry import Registry
from torso.server.statistics import Declared


@dataclass(frozen=True)
class VisitStart:
    """What G clients have at the start of a visit. Tensors are stacked [G, *]."""

    task: LocalTask  # the local training of this visit
    received: Tensors  # the server's model, with the parts that the clients keep
    own: Tensors  # as `received`, with the tensors that the clients' last visit left (`after`)
    notes: Tensors  # what the strategy remembers of each client
    offered: Sequence[Callable[[], Tensors]]  # M models of other clients; each is fetched when it is called
    senders: Tensor  # [G, M]: the clients that sent these models
    loss: Callable[[Tensors], Tensor]  # mean loss [G] of models on the samples that are held out
    parameters: tuple[str, ...]  # names of the tensors that travel and train
    told: Tensors = field(default_factory=dict)  # statistics from the server (method.statistics)
    said: Tensors = field(default_factory=dict)  # statistics that the clients send; known only in `after`
    batch_size: int = 64  # of evaluation


@dataclass(frozen=True)
class OwnModelStart:
    """What G clients have when their own models are evaluated or exported. Tensors are stacked [G, *]."""

    held: Tensors  # the models with which a visit would begin
    own: Tensors  # as `held`, with the tensors that the clients' last visit left (`Personal.after`)
    travels: frozenset[str]  # names of the tensors that travel
    visit: Callable[[], LocalResult]  # makes one more visit, without upload
    counts: Callable[[], Tensor]  # [G, C]: training samples of each class
    told: Callable[[], Tensors] = dict  # [G, *]: statistics from the server (method.statistics)
    says: Callable[[], Tensors] = dict  # [G, *]: the statistics that the clients would send for `held`
    head: frozenset[str] = frozenset()  # names of the tensors of the head, without a personal head


personals: Registry[type[Personal]] = Registry("method.personal")


@personals.register("held")
@dataclass(frozen=True)
class Personal:
    """The model that a client holds, followed by fine-tuning if there are `phases`.

    Fine-tuning uses `factor` times personalize.lr, or times the learning rate of the run's first or last round (spec
    8.4). This class is also the base of all other strategies: a subclass overrides the functions in which it
    differs."""

    phases: tuple[Phase, ...] = ()
    factor: Positive = 1.0
    rate: Literal["personalize", "first", "last"] = "personalize"

    from_start: ClassVar[bool] = False  # whether a client's own model begins at the run's initial model
    hears: ClassVar[tuple[str, ...]] = ()  # names of the server's statistics that it needs
    passes: ClassVar[int] = 0  # additional training passes in a visit, for the cost (spec 14.2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", phases(self.phases))

    @property
    def keeps(self) -> bool:
        """Whether clients keep the tensors that `after` returns."""
        return False

    @property
    def parts(self) -> Mapping[str, str]:
        """The options that name a part of the network, with their values; they are checked before a run begins."""
        return {}

    def check(self, net: Network) -> None:
        """Refuse options that make no sense for this network."""

    def opening_passes(self, offered: int) -> float:
        """Forward passes in `before` for each held-out sample (for each training sample if none is held out), for the
        cost. `offered`: the number of models from other clients."""
        return 0.0

    @property
    def holds_out(self) -> float:
        """The share of a client's training samples that are held out of training."""
        return 0.0

    def notes(self, client: int, clients: int, net: Network) -> Tensors:
        """The first notes of a client [*]. `clients`: the number of all clients; `net` gives shapes and parts, but has
        no weights."""
        return {}

    def declares(self, offered: int) -> Declared:
        """The notes from `before` that a client sends to the server instead of keeping them. `offered`: the number of
        models from other clients."""
        return {}

    def known(self, client: int, clients: int) -> Tensors:
        """What the server keeps about a client before its first visit [*]. `clients`: the number of all clients."""
        return {}

    def offer(self, known: Tensors, available: Sequence[int], round: int, rng: np.random.Generator) -> tuple[int, ...]:
        """The clients whose last models the server sends to one client. `known`: what the server keeps about that
        client; `available`: the clients that have a model."""
        return ()

    def heard(self, known: Tensors, senders: Tensor, said: Tensors) -> Tensors:
        """What the server keeps about a client after its visit. `senders` [M]: the clients whose models were offered;
        `said`: what the client sent about them, as it `declares`."""
        return known

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        """The models [G, *] with which the visit begins, and the new notes [G, *]."""
        return at.received, at.notes

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        """The tensors [G, *] that clients keep for their own models after the visit, if the strategy `keeps` any."""
        return {}

    def begin(self, at: OwnModelStart) -> Tensors:
        """The models [G, *] with which fine-tuning begins; the clients' own models if there is no fine-tuning."""
        return at.held


@personals.register("fine-tune")
@dataclass(frozen=True)
class FineTune(Personal):
    """Fine-tuning: train a part (or several in turn) of a copy of the model on the client's own data. Nothing is sent
    to the server (spec 9.2)."""

    phases: tuple[Phase, ...] = (Phase("all"),)
