"""Visits that begin with a mix of other clients' models, weighted by how much they help (FedFomo, spec 5.6).

N clients, G of them at once, M models offered to each, θ_k the client's own model after its last visit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torso.kinds import Count, Fraction, NotNegative
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.personal.base import Personal, VisitStart, personals
from torso.server.statistics import Declared, Statistic

AFFINITY = "affinity"  # kept by the server for each client [N]: the scores of all clients' models, summed over rounds
SCORES = "scores"  # name of a note [M]: the scores of the offered models
_SMALLEST = 1e-5  # added to distances, so that the client's own model, with distance 0, has score 0


@personals.register("fomo")
@dataclass(frozen=True)
class Fomo(Personal):
    """A mix of other clients' models: a visit begins with θ_k + Σ_j w_j(θ_j − θ_k), w_j ∝ max(0, (L(θ_k) − L(θ_j)) /
    ‖θ_j − θ_k‖), with L the loss on a share `validation` of the client's own samples (FedFomo, spec 5.6).

    The server sends the `models` models with the greatest affinity so far. Each of them is replaced by a random one
    with probability `explore`, which falls by `decay` in each round."""

    models: Count = 5
    validation: Fraction = 0.2
    explore: NotNegative = 0.3
    decay: NotNegative = 0.05

    @property
    def holds_out(self) -> float:
        return self.validation

    def opening_passes(self, offered: int) -> float:
        return 1.0 + offered if offered else 0.0

    def known(self, client: int, clients: int) -> Tensors:
        return {AFFINITY: torch.eye(1, clients).roll(client)[0]}

    def declares(self, offered: int) -> Declared:
        what = "how well the models of others do on its samples"
        return {SCORES: Statistic((offered,), what, "each")} if offered else {}

    def heard(self, known: Tensors, senders: Tensor, said: Tensors) -> Tensors:
        scores = said[SCORES]
        return {AFFINITY: known[AFFINITY].to(scores.device).scatter_add(0, senders, scores)}

    def offer(self, known: Tensors, available: Sequence[int], round: int, rng: np.random.Generator) -> tuple[int, ...]:
        """The clients with the greatest affinity, some of them replaced by random ones. The order of clients with equal
        affinity is random."""
        pool = rng.permutation(np.asarray(available, dtype=np.int64))
        ranked = pool[np.argsort(-known[AFFINITY].cpu().numpy()[pool], kind="stable")]
        best = ranked[: self.models]
        others = ranked[self.models :]
        replaced = rng.random(len(best)) < self.explore - self.decay * (round - 1)
        random_ones = rng.permutation(others)[: replaced.sum()]
        kept = best[replaced][len(random_ones) :]  # to be replaced, but there are no more others
        return tuple(int(k) for k in (*best[~replaced], *kept, *random_ones))

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        if not at.offered:
            return at.received, at.notes
        scores = self._scores(at)
        weights = scores.clamp(min=0)
        weights = weights / weights.sum(dim=0).clamp(min=torch.finfo(weights.dtype).tiny)
        mixed = dict(at.received)
        for weight, fetch in zip(weights, at.offered, strict=True):
            for name, theirs in fetch().items():
                if theirs.is_floating_point():  # running statistics are mixed like parameters, counters are not
                    mixed[name] = mixed[name] + per_client(weight, theirs) * (theirs - at.received[name])
        return mixed, {**at.notes, SCORES: scores.T}

    def _scores(self, at: VisitStart) -> Tensor:
        """The scores of the offered models [M, G], (L(θ_k) − L(θ_j)) / ‖θ_j − θ_k‖, not clipped at 0."""
        before = at.loss(at.received)
        gains = torch.stack([before - at.loss({**at.received, **fetch()}) for fetch in at.offered])
        return gains / (torch.stack([_distance(fetch(), at) for fetch in at.offered]) + _SMALLEST)


def _distance(theirs: Tensors, at: VisitStart) -> Tensor:
    """‖θ_j − θ_k‖ [G]."""
    squares = [(theirs[name] - at.received[name]).flatten(1).square().sum(dim=1) for name in at.parameters]
    return torch.stack(squares).sum(dim=0).sqrt()
