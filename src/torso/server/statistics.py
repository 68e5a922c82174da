"""What may travel beside weights: statistics that clients send, and what the server makes of them and sends back.

A method declares each of them with a shape, a meaning and a rule (`Statistic`). From this declaration come the bytes,
the check of uploads, the words that a person at a client reads, and what privacy and robust rules refuse. Clients work
them out at the end of a visit (`of_clients`); the server combines them (`combine`), holds something of them from round
to round (`ServerView`), and tells it to all clients (`to_all`) or to each its own (`to_one`).

G clients, C classes, d features, * a tensor's shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torso.data.batches import Batch, Shuffle
from torso.learn.looking import class_sums, in_turn, look
from torso.learn.task import LocalResult, LocalTask
from torso.nets import Network, Output, Tensors
from torso.registry import Registry

Rule = Literal["sum", "mean", "each"]
Numbers = Literal["any", "not negative", "count"]


@dataclass(frozen=True)
class Statistic:
    """One tensor of float32 that a client sends beside its model.

    `rule`: the server gets the sum over the participants, their mean (weighted as their models are), or each
    client's own. `meaning` completes "a client sends …". `counts`: whether it tells how many samples of each class the
    client has, at least which classes it has. `numbers`: what they can be (a count is whole and not negative); an
    upload with others is not used.

    For secure sums, whose numbers have a range: `over_samples`, whether it is a sum over the client's samples, which is
    sent divided by how many a client may have; `power`, that its size is about a feature's to this power."""

    shape: tuple[int, ...]
    meaning: str
    rule: Rule = "sum"
    counts: bool = False
    numbers: Numbers = "any"
    over_samples: bool = False
    power: int = 1


Declared = Mapping[str, Statistic]


@dataclass(frozen=True)
class ServerView:
    """What the server has when it combines or tells: what it holds for all and by client, and what it holds anyway."""

    shared: Tensors = field(default_factory=dict)  # [*]
    own: Mapping[int, Tensors] = field(default_factory=dict)  # by client
    model: Tensors = field(default_factory=dict)  # as it is broadcast next
    uploads: Mapping[int, Tensors] = field(default_factory=dict)  # everybody's last one, where the server rule keeps it
    parameters: tuple[str, ...] = ()  # those of the tensors that travel and learn
    before: Tensors = field(default_factory=dict)  # in `combine`: the model with which the round began

    @cached_property
    def every(self) -> Tensors:
        """The uploads [J, *] in the order of their clients, without counters."""
        rows = [self.uploads[client] for client in sorted(self.uploads)]
        floats = [name for name, tensor in rows[0].items() if tensor.is_floating_point()]
        return {name: torch.stack([row[name] for row in rows]) for name in floats}


@dataclass(frozen=True)
class RoundStatistics:
    """What a round's participants sent: sums and means [*] by name, and single statistics by client."""

    round: int
    weights: Mapping[int, float]  # of those who came, in the order of the participants; they sum to 1
    combined: Tensors = field(default_factory=dict)
    each: Mapping[int, Tensors] = field(default_factory=dict)

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(self.weights)

    def stacked(self, name: str) -> Tensor:
        """One statistic of all who came [K, *]."""
        return torch.stack([self.each[client][name] for client in self.clients])


@dataclass(frozen=True)
class VisitEnd:
    """G clients at the end of a visit: what statistics are worked out from. Tensors are stacked [G, *]."""

    task: LocalTask
    start: Tensors  # the models that local training began with
    learned: LocalResult
    told: Tensors  # what the server has told them
    batch_size: int  # of evaluation

    @property
    def classes(self) -> int:
        return self.task.context.classes

    def look(self, tensors: Tensors) -> Iterator[tuple[Batch, Output]]:
        """What models say of all samples that the clients learn from, in evaluation mode and in a random order."""
        context, deck = self.task.context, self.task.deck
        return look(context, in_turn(context, deck, self.batch_size, self._order), tensors, self.batch_size)

    def class_sums(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Features under some models, summed by class [G, C, d], and how many there are [G, C]."""
        return class_sums(self.task.context, self.task.deck, tensors, self.batch_size, self._order)

    @property
    def _order(self) -> Shuffle:
        return self.task.shuffle.for_use("statistics")


class Statistics:
    """The base: nothing but weights travels."""

    once: ClassVar[bool] = False  # whether clients send it in the first round of the method alone
    passes: ClassVar[float] = 0.0  # forward passes of each sample that `of_clients` takes, for the cost (spec 14.2)
    weighs: ClassVar[str] = ""  # the declared scalar by which models weigh in the mean, instead of by samples
    needs_uploads: ClassVar[bool] = False  # whether it makes something of everybody's last upload
    mixes: ClassVar[bool] = False  # whether each client is told tensors of a model of its own, under the model's names

    def check(self, net: Network, share: frozenset[str]) -> None:
        """Refuse a network, or a shared part, that does not fit."""

    def declares(self, net: Network, classes: int) -> Declared:
        """What every participant sends beside its model."""
        return {}

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        """What the server holds for all before anybody has sent something; `seed` is the run's."""
        return {}

    def of_clients(self, at: VisitEnd) -> Tensors:
        """What G clients send [G, *], by the declared names."""
        return {}

    def combine(self, held: ServerView, came: RoundStatistics) -> ServerView:
        """What the server holds after a round: `shared` and `own` count, the rest is for reading."""
        return held

    def shows(self, held: ServerView) -> Tensors:
        """Tensors of the model that accuracy is reported on, where they are not what is broadcast."""
        return {}

    def to_all(self, held: ServerView) -> Tensors:
        """What all participants are told."""
        return held.shared

    def to_one(self, held: ServerView, client: int) -> Tensors:
        """What one participant is told besides; the same names and shapes for every client. Under the name of a tensor
        of the model it stands for it: the visit begins with it, and drift corrections hold on to it."""
        return {}


statistics: Registry[type[Statistics]] = Registry("method.statistics")


@statistics.register("none")
@dataclass(frozen=True)
class NoStatistics(Statistics):
    """Nothing but weights travels."""


def words(declared: Declared) -> str:
    """What is sent, in words."""
    return ", ".join(dict.fromkeys(each.meaning for each in declared.values()))


def size(declared: Declared) -> int:
    """The size in bytes."""
    return sum(4 * torch.Size(each.shape).numel() for each in declared.values())


def counted(declared: Declared) -> bool:
    """Whether the server learns of the classes of a single client."""
    return any(each.counts for each in declared.values())


def blended(weights: Tensor, rows: Sequence[Tensors]) -> Tensors:
    """Σ_k w_k t_k [*] of K clients' tensors, client by client: the same bits whoever computed them."""
    total = {name: weights[0] * tensor for name, tensor in rows[0].items()}
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        total = {name: tensor + weight * row[name] for name, tensor in total.items()}
    return total
