"""A realigned generic head: the rows of an auxiliary head, all scaled to the same length (FedLoGe, spec 19.23)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from torso.errors import RequestError
from torso.kinds import Positive
from torso.nets import Network, Tensors
from torso.nets.sparse_simplex import SparseSimplexHead
from torso.server.statistics import ServerView, Statistics, statistics


@statistics.register("realignment")
@dataclass(frozen=True)
class Realignment(Statistics):
    """A realigned head for the generic model: accuracy is reported with `length`·ψ_c/‖ψ_c‖ instead of the fixed
    classifier, with ψ the auxiliary head. Clients send no further statistic (FedLoGe, spec 19.23)."""

    length: Positive = 1.7

    def check(self, net: Network, share: frozenset[str]) -> None:
        if not isinstance(net.head, SparseSimplexHead):
            raise RequestError(
                f"method.statistics = 'realignment' needs an auxiliary head, found {type(net.head).__name__}. "
                "Accepted: method.head = 'sparse-simplex'"
            )

    def shows(self, held: ServerView) -> Tensors:
        weight = self.length * F.normalize(held.model["head.auxiliary.weight"], dim=-1)
        return {"head.classifier.weight": weight, "head.classifier.bias": held.model["head.auxiliary.bias"].clone()}
