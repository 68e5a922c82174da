"""A custom method that sends statistics besides weights: class means of features. See docs/extending.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from torso.kinds import NotNegative
from torso.learn.objectives import objectives
from torso.learn.teachers import TeacherObjective
from torso.methods import Method, methods
from torso.methods.catalogue import fedavg
from torso.nets import Network, Output, Tensors
from torso.server.statistics import Declared, RoundStatistics, ServerView, Statistic, Statistics, VisitEnd, statistics


@statistics.register("own-class-means")
@dataclass(frozen=True)
class OwnClassMeans(Statistics):
    """Clients send features summed by class; the server sends the class means to all clients."""

    passes: ClassVar[float] = 1.0  # each sample is looked at once more

    def declares(self, net: Network, classes: int) -> Declared:
        return {
            "total": Statistic((classes, net.body.features), "class sums", counts=True, over_samples=True),
            "count": Statistic((classes,), "class counts", counts=True, numbers="count"),
        }

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        return {"means": torch.zeros(classes, net.body.features)}

    def of_clients(self, at: VisitEnd) -> Tensors:
        total, count = at.class_sums(at.learned.tensors)  # [G, C, d], [G, C]
        return {"total": total, "count": count}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        total = received.combined["total"]  # summed over the participants
        count = received.combined["count"].unsqueeze(-1)
        means = torch.where(count > 0, total / count.clamp(min=1), held.shared["means"])
        return replace(held, shared={"means": means})


@objectives.register("own-near-means")
@dataclass(frozen=True)
class NearMeans(TeacherObjective):
    """Cross-entropy + μ·‖f − m_y‖², with m_y the server's mean of the label's class."""

    mu: NotNegative = 0.01
    teachers: ClassVar[tuple[str, ...]] = ("told.means",)

    def against(self, said: Output, labels: Tensor, taught: Tensors) -> Tensor:
        return self.mu * (said.features - taught["told.means"]).square().sum(dim=-1)  # [G, B]


@methods.register("fedavg-means")
def fedavg_means() -> Method:
    """FedAvg whose features are drawn to the global class means."""
    return fedavg.but(objective=NearMeans(), statistics=OwnClassMeans())
