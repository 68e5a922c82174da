"""The mean feature of all clients, which the server sends back to them (FedTHE, spec 19.22).

G clients, C classes, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from torso.nets import Network, Tensors
from torso.server.statistics import Declared, RoundStatistics, ServerView, Statistic, Statistics, VisitEnd, statistics

CENTRE = "centre"


@statistics.register("centre")
@dataclass(frozen=True)
class Centre(Statistics):
    """The mean feature of all clients: a client sends the mean over its samples, computed with its trained model; the
    server averages them with the weights of the models and sends the result to all participants (FedTHE, spec
    19.22)."""

    passes: ClassVar[float] = 1.0

    def declares(self, net: Network, classes: int) -> Declared:
        return {CENTRE: Statistic((net.body.features,), "mean feature of its samples", "mean")}

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        return {CENTRE: torch.zeros(net.body.features)}

    def of_clients(self, at: VisitEnd) -> Tensors:
        total, count = at.class_sums(at.learned.tensors)
        return {CENTRE: total.sum(dim=1) / count.sum(dim=1, keepdim=True).clamp(min=1)}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        return replace(held, shared={CENTRE: received.combined[CENTRE]})
