"""How does a client get a model of its own? Two questions: which model does it begin with, and is that fine-tuned?"""

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
    """What G clients have at the beginning of a visit; tensors are stacked [G, *]."""

    task: LocalTask  # what they will learn from
    received: Tensors  # the server's model, with their own parts of it
    own: Tensors  # the same with what their last visit left them
    notes: Tensors
    offered: Sequence[Callable[[], Tensors]]  # M models of others, each fetched when it is looked at
    senders: Tensor  # [G, M]: whose they are
    loss: Callable[[Tensors], Tensor]  # mean loss [G] on the samples held out
    parameters: tuple[str, ...]  # those of the tensors that travel and learn
    told: Tensors = field(default_factory=dict)  # what the server says of statistics (method.statistics)
    said: Tensors = field(default_factory=dict)  # the statistics that they send: known when the visit is over (`after`)
    batch_size: int = 64  # of evaluation


@dataclass(frozen=True)
class OwnModelStart:
    """What G clients have when their own models are asked for; tensors are stacked [G, *]."""

    held: Tensors  # what they would begin a visit with
    own: Tensors  # the same with what their visits left them
    travels: frozenset[str]
    visit: Callable[[], LocalResult]  # one more visit, of which nothing is uploaded
    counts: Callable[[], Tensor]  # [G, C]: their training samples of each class
    told: Callable[[], Tensors] = dict  # [G, *]: what the server says of statistics (method.statistics)
    says: Callable[[], Tensors] = dict  # [G, *]: the statistics that they would send of `held`
    head: frozenset[str] = frozenset()  # the tensors of the head, without a personal one


personals: Registry[type[Personal]] = Registry("method.personal")


@personals.register("held")
@dataclass(frozen=True)
class Personal:
    """The model that a client holds, then the phases of fine-tuning, if any; the base of the other ways.

    Fine-tuning runs at `factor` times personalize.lr, or times the rate of the run's first or last round (spec 8.4)."""

    phases: tuple[Phase, ...] = ()
    factor: Positive = 1.0
    rate: Literal["personalize", "first", "last"] = "personalize"

    from_start: ClassVar[bool] = False  # a client's own model begins at the run's initial model
    hears: ClassVar[tuple[str, ...]] = ()  # the statistics that it needs of what the server tells
    passes: ClassVar[int] = 0  # further training passes of a visit, for the cost (spec 14.2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", phases(self.phases))

    @property
    def keeps(self) -> bool:
        """Whether a visit leaves the client a model of its own, beside the parts that it keeps anyway."""
        return False

    @property
    def parts(self) -> Mapping[str, str]:
        """Option → part of the network, of the options that name one: looked at before a run begins."""
        return {}

    def check(self, net: Network) -> None:
        """Refuse options that have no meaning with this network."""

    def opening_passes(self, offered: int) -> float:
        """Forward passes of `before` for each sample held out (of each trained on, where none is), for the cost."""
        return 0.0

    @property
    def holds_out(self) -> float:
        """The share of a client's training samples that it does not train on."""
        return 0.0

    def notes(self, client: int, clients: int, net: Network) -> Tensors:
        """What a client remembers at first, of `clients` in all; `net` tells shapes and parts, not weights."""
        return {}

    def declares(self, offered: int) -> Declared:
        """The notes of `before` that are sent to the server and not kept, where so many models are offered."""
        return {}

    def known(self, client: int, clients: int) -> Tensors:
        """What the server holds of a client at first, of `clients` in all."""
        return {}

    def offer(self, known: Tensors, available: Sequence[int], round: int, rng: np.random.Generator) -> tuple[int, ...]:
        """The clients whose last models the server sends to one of which it knows this."""
        return ()

    def heard(self, known: Tensors, senders: Tensor, said: Tensors) -> Tensors:
        """What the server holds of a client that has sent what it `declares` about the models of M senders [M]."""
        return known

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        """The models that the visit begins with, and the notes."""
        return at.received, at.notes

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        """That model [G, *], from what the clients had when the visit began, and what it has learned."""
        return {}

    def begin(self, at: OwnModelStart) -> Tensors:
        """The model that fine-tuning begins with [G, *]."""
        return at.held


@personals.register("fine-tune")
@dataclass(frozen=True)
class FineTune(Personal):
    """Train a part (or parts in turn) of a copy on the client's own data; nothing flows back (spec 9.2)."""

    phases: tuple[Phase, ...] = (Phase("all"),)
