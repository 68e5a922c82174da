"""Aggregate the statistics that the participants of a round send in addition to their models."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.stacked import masked_rows
from torso.nets import Tensors
from torso.runs.messages import Sent
from torso.server import ServerRule, Statistics
from torso.server.statistics import Declared, RoundStatistics
from torso.server.sums import add_stacked, add_weighted

# the least weight of a model if a statistic gives the weights, so that all models weigh the same if all weights are 0
_LEAST = 1e-12


class StatisticsSums:
    """The aggregate of one round's statistics. Each statistic is combined as its rule says: "sum", "mean" or "each"."""

    def __init__(self, declared: Declared, statistics: Statistics, rule: ServerRule) -> None:
        self.declared = declared
        self._weighs = statistics.weighs
        self._rule = rule
        self.combined: Tensors = {}  # name -> sum or weighted mean
        self.single: dict[int, Tensors] = {}  # client -> its statistics with the rule "each"
        self.each: dict[int, Tensors] = {}  # client -> its other statistics, if the server rule needs single uploads
        self.weighed: Tensor | None = None  # Σ_k of the statistic that gives the models' weights, if there is one

    @property
    def holds_single(self) -> bool:
        """Whether a statistic has the rule "each", so that those of single clients are held."""
        return any(each.rule == "each" for each in self.declared.values())

    def add(self, sent: Sent, weights: Tensor, rows: Tensor | None) -> None:
        """Add the statistics of G clients. `rows` [G]: whether a client counts; None: all count."""
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
        """The weights [G] of the clients' models: `weights`, or a statistic that they have sent."""
        name = self._weighs
        if not name:
            return weights
        mine = masked_rows(sent.said[name].reshape(-1).clamp(min=_LEAST), rows)
        total: Tensors = {} if self.weighed is None else {name: self.weighed}
        add_stacked(total, {name: mine})
        self.weighed = total[name]
        return mine

    def divide_means(self, answered: float) -> None:
        """Make means over the clients that answered. `answered`: the sum of their weights."""
        means = [name for name in self.combined if self.declared[name].rule == "mean"]
        self.combined |= {name: self.combined[name] / answered for name in means}

    def leave_out(self, client: int) -> None:
        """Drop what is held of a client whose upload is not used."""
        self.single.pop(client, None)
        self.each.pop(client, None)

    def finished(self, round: int, weights: Mapping[int, float]) -> RoundStatistics:
        """The round's statistics. `weights`: of the clients that are counted, in the order of the participants."""
        combined = self._robust(weights) if self.each else self.combined
        return RoundStatistics(round, dict(weights), combined, self.single)

    def _robust(self, weights: Mapping[int, float]) -> Tensors:
        """The result of the server rule in place of each mean. A sum is that result times the number of clients."""
        found: Tensors = {}
        for name, declared in self.declared.items():
            stacked = torch.stack([self.each[k][name] for k in weights])
            shares = on_device(stacked.device, list(weights.values()))
            combined = self._rule.combine({}, {}, {name: stacked}, shares)[name]
            found[name] = combined if declared.rule == "mean" else combined * len(weights)
        return found


def row_of(stacked: Tensors, place: int) -> Tensors:
    """One client's tensors of a stack. They are copied unless it is alone, so that they do not keep the stack alive."""
    return {n: t[0] if len(t) == 1 and not t._is_view() else t[place].clone() for n, t in stacked.items()}
