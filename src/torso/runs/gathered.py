"""What the participants of a round send beside their models, each statistic combined as its rule says."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.stacked import spared
from torso.nets import Tensors
from torso.runs.messages import Sent
from torso.server import ServerRule, Statistics
from torso.server.statistics import Declared, RoundStatistics
from torso.server.sums import add_stacked, add_weighted

_LEAST = 1e-12  # what a model weighs at least, where a statistic weighs it: if all are 0, all weigh the same


class Gathered:
    """The statistics of one round, as they come."""

    def __init__(self, declared: Declared, statistics: Statistics, rule: ServerRule) -> None:
        self.declared, self._weighs, self._rule = declared, statistics.weighs, rule
        self.combined: Tensors = {}  # sums and weighted means, as their rules say
        self.single: dict[int, Tensors] = {}  # by client, where their rule says so
        self.each: dict[int, Tensors] = {}  # all of them by client, where the server rule looks at single uploads
        self.weighed: Tensor | None = None  # Σ_k of the statistic by which models are weighed, where one is

    @property
    def holds_single(self) -> bool:
        """Whether those of single clients are held by their own rule."""
        return any(each.rule == "each" for each in self.declared.values())

    def add(self, sent: Sent, weights: Tensor, rows: Tensor | None) -> None:
        """`rows` [G]: the clients that count; None: all do."""
        for name, tensor in sent.said.items():
            rule = self.declared[name].rule
            if rule == "each" or self._rule.needs_each:
                kept = self.single if rule == "each" else self.each
                for place, client in enumerate(sent.clients):
                    kept.setdefault(client, {}).update(row_of({name: tensor}, place))
            elif rule == "sum":
                add_stacked(self.combined, {name: tensor}, rows)
            else:
                add_weighted(self.combined, {name: tensor}, weights, rows)

    def weights_of(self, sent: Sent, weights: Tensor, rows: Tensor | None) -> Tensor:
        """By what the models count: their shares, or a statistic that they have sent."""
        if not (name := self._weighs):
            return weights
        mine = spared(sent.said[name].reshape(-1).clamp(min=_LEAST), rows)
        total: Tensors = {} if self.weighed is None else {name: self.weighed}
        add_stacked(total, {name: mine})
        self.weighed = total[name]
        return mine

    def divide_means(self, came: float) -> None:
        """Means are over those who came, whose weights add up to `came`."""
        means = [name for name in self.combined if self.declared[name].rule == "mean"]
        self.combined |= {name: self.combined[name] / came for name in means}

    def leave_out(self, client: int) -> None:
        for held in (self.single, self.each):
            held.pop(client, None)

    def came(self, round: int, weights: Mapping[int, float]) -> RoundStatistics:
        """What the server makes new statistics of; `weights`: those of the clients that are counted."""
        return RoundStatistics(round, dict(weights), self._robust(weights) if self.each else self.combined, self.single)

    def _robust(self, weights: Mapping[int, float]) -> Tensors:
        """What the server rule gives in place of means; of sums, as many times that as clients came."""
        found: Tensors = {}
        for name, declared in self.declared.items():
            stacked = torch.stack([self.each[k][name] for k in weights])
            shares = on_device(stacked.device, list(weights.values()))
            combined = self._rule.combine({}, {}, {name: stacked}, shares)[name]
            found[name] = combined if declared.rule == "mean" else combined * len(weights)
        return found


def row_of(stacked: Tensors, place: int) -> Tensors:
    """One client's tensors, in memory of their own where they stand among others'."""
    return {n: t[0] if len(t) == 1 and not t._is_view() else t[place].clone() for n, t in stacked.items()}
