"""Statistics: what clients send with their weights, and what the server computes from it and sends back.

A method declares each statistic with a shape, a meaning and a rule (`Statistic`). The declaration determines the bytes
that are counted, the check of uploads, the text that a person at a client reads, and whether private rounds and robust
rules refuse the statistic. One round: clients compute the statistics at the end of a visit (`of_clients`); the server
combines them (`combine`) and keeps a result from round to round (`ServerView`); it sends the result to all participants
(`to_all`) and another part to each (`to_one`).

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
from torso.learn.outputs import all_batches, class_sums, look
from torso.learn.task import LocalResult, LocalTask
from torso.nets import Network, Output, Tensors
from torso.registry import Registry

Rule = Literal["sum", "mean", "each"]
Numbers = Literal["any", "not negative", "count"]


@dataclass(frozen=True)
class Statistic:
    """The declaration of one float32 tensor that a client sends with its model.

    The last two fields are for secure sums, whose numbers have a limited range."""

    shape: tuple[int, ...]
    meaning: str  # completes the sentence "a client sends …"
    rule: Rule = "sum"  # what the server gets: the sum, the mean (with the weights of the models), or each client's own
    counts: bool = False  # whether it reveals the client's class counts, or at least which classes it has
    numbers: Numbers = "any"  # which numbers are valid (a count is whole and not negative); other uploads are not used
    over_samples: bool = False  # whether it is a sum over samples; it is sent divided by the most samples of a client
    power: int = 1  # its numbers have about the size of a feature to this power


Declared = Mapping[str, Statistic]


@dataclass(frozen=True)
class ServerView:
    """The server's data for a statistic: `shared` and `own`, which the statistic computes, and what the server has
    anyway, for reading."""

    shared: Tensors = field(default_factory=dict)  # [*]: kept for all clients
    own: Mapping[int, Tensors] = field(default_factory=dict)  # [*] by client: kept for one client
    model: Tensors = field(default_factory=dict)  # as it is broadcast next
    uploads: Mapping[int, Tensors] = field(default_factory=dict)  # each client's last upload, if the rule keeps them
    parameters: tuple[str, ...] = ()  # names of the tensors that travel and train
    before: Tensors = field(default_factory=dict)  # in `combine`: the model at the start of the round

    @cached_property
    def every(self) -> Tensors:
        """All J uploads as stacked tensors [J, *], in the order of the clients' numbers, without counters."""
        rows = [self.uploads[client] for client in sorted(self.uploads)]
        floats = [name for name, tensor in rows[0].items() if tensor.is_floating_point()]
        return {name: torch.stack([row[name] for row in rows]) for name in floats}


@dataclass(frozen=True)
class RoundStatistics:
    """The statistics that arrived from a round's participants."""

    round: int
    weights: Mapping[int, float]  # weight of each client that answered, in the order of the participants; sum 1
    combined: Tensors = field(default_factory=dict)  # [*]: statistics of the rules `sum` and `mean`
    each: Mapping[int, Tensors] = field(default_factory=dict)  # [*] by client: statistics of the rule `each`

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that answered, in the order of the participants."""
        return tuple(self.weights)

    def stacked(self, name: str) -> Tensor:
        """One statistic of the rule `each`, of all clients that answered [K, *]."""
        return torch.stack([self.each[client][name] for client in self.clients])


@dataclass(frozen=True)
class VisitEnd:
    """G clients at the end of a visit, from which statistics are computed. Tensors are stacked [G, *]."""

    task: LocalTask
    start: Tensors  # the models at the start of local training
    learned: LocalResult
    told: Tensors  # the statistics that the server sent
    batch_size: int  # of evaluation

    @property
    def classes(self) -> int:
        return self.task.context.classes

    def look(self, tensors: Tensors) -> Iterator[tuple[Batch, Output]]:
        """Outputs of models [G, *] for all training samples of the clients, in evaluation mode and in random order."""
        context, deck = self.task.context, self.task.deck
        return look(context, all_batches(context, deck, self.batch_size, self._order), tensors, self.batch_size)

    def class_sums(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """The sums of features by class [G, C, d] for models [G, *], and the numbers of samples [G, C]."""
        return class_sums(self.task.context, self.task.deck, tensors, self.batch_size, self._order)

    @property
    def _order(self) -> Shuffle:
        return self.task.shuffle.for_use("statistics")


class Statistics:
    """The base class of statistics. A subclass overrides the functions in which it differs; by default only weights
    travel."""

    once: ClassVar[bool] = False  # whether clients send them in the method's first round only
    passes: ClassVar[float] = 0.0  # forward passes over each sample in `of_clients`, for the cost (spec 14.2)
    weighs: ClassVar[str] = ""  # the declared scalar that weighs the models in the mean, instead of the samples
    needs_uploads: ClassVar[bool] = False  # whether the server's part needs the last upload of every client
    mixes: ClassVar[bool] = False  # whether `to_one` sends tensors under the model's names, to replace the model's

    def check(self, net: Network, share: frozenset[str]) -> None:
        """Refuse a network, or a shared part, that does not fit."""

    def declares(self, net: Network, classes: int) -> Declared:
        """The statistics that every participant sends, by name."""
        return {}

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        """`ServerView.shared` before the first round [*]; `seed` is the run's."""
        return {}

    def of_clients(self, at: VisitEnd) -> Tensors:
        """The declared statistics of G clients [G, *]."""
        return {}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        """The server's view after a round. Only its `shared` and `own` are kept."""
        return held

    def shows(self, held: ServerView) -> Tensors:
        """Tensors of the model that accuracy is reported on, if they differ from those that are broadcast."""
        return {}

    def to_all(self, held: ServerView) -> Tensors:
        """The tensors [*] that the server sends to all participants."""
        return held.shared

    def to_one(self, held: ServerView, client: int) -> Tensors:
        """The tensors [*] that the server also sends to one participant, with the same names and shapes for every
        client.

        A tensor under the name of one of the model's replaces it: the visit begins with it, and drift corrections
        compare with it."""
        return {}


statistics: Registry[type[Statistics]] = Registry("method.statistics")


@statistics.register("none")
@dataclass(frozen=True)
class NoStatistics(Statistics):
    """No statistics: only weights travel."""


def words(declared: Declared) -> str:
    """The meanings of the declared statistics, for people to read."""
    return ", ".join(dict.fromkeys(each.meaning for each in declared.values()))


def size(declared: Declared) -> int:
    """The size of the declared statistics in bytes."""
    return sum(4 * torch.Size(each.shape).numel() for each in declared.values())


def counted(declared: Declared) -> bool:
    """Whether the statistics reveal the classes of a single client to the server."""
    return any(each.counts for each in declared.values())


def blended(weights: Tensor, rows: Sequence[Tensors]) -> Tensors:
    """Σ_k w_k t_k [*] over K clients' tensors, added client by client, so that the bits are always the same."""
    total = {name: weights[0] * tensor for name, tensor in rows[0].items()}
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        total = {name: tensor + weight * row[name] for name, tensor in total.items()}
    return total
