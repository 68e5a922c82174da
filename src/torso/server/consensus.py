"""The mean feature of all clients, computed once in the first round (FedDBE, spec 19.15)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from torso.nets import Network, Tensors
from torso.server.statistics import Declared, RoundStatistics, ServerView, Statistic, Statistics, VisitEnd, statistics

CONSENSUS, ESTABLISHED = "consensus", "established"


@statistics.register("consensus")
@dataclass(frozen=True)
class Consensus(Statistics):
    """A consensus on the mean feature: in the first round each participant sends the mean of its features after local
    training. The server averages them with the weights of the models, and sends this mean in all later rounds (FedDBE,
    spec 19.15)."""

    once: ClassVar[bool] = True
    passes: ClassVar[float] = 1.0

    def declares(self, net: Network, classes: int) -> Declared:
        return {"mean": Statistic((net.body.features,), "its mean feature (first round)", "mean")}

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        return {CONSENSUS: torch.zeros(net.body.features), ESTABLISHED: torch.zeros(())}

    def of_clients(self, at: VisitEnd) -> Tensors:
        total, count = at.class_sums(at.learned.tensors)
        return {"mean": total.sum(dim=1) / count.sum(dim=1, keepdim=True).clamp(min=1)}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        mean = received.combined["mean"]
        return replace(held, shared={CONSENSUS: mean, ESTABLISHED: mean.new_ones(())})
