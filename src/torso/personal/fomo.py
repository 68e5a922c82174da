"""Every client mixes the models of others that help it, and remembers who did (FedFomo, spec 5.6).

N clients, G of them at once, M models offered to each, θ_k the client's own model of its last visit.
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

AFFINITY = "affinity"  # of one client to all [N]: the scores of the models it was sent, summed over the rounds
SCORES = "scores"
_SMALLEST = 1e-5  # added to a distance: the client's own model has distance 0 and score 0


@personals.register("fomo")
@dataclass(frozen=True)
class Fomo(Personal):
    """A visit begins with θ_k + Σ_j w_j(θ_j − θ_k), w_j ∝ max(0, (L(θ_k) − L(θ_j)) / ‖θ_j − θ_k‖), where L is the loss
    on `validation` of the client's own samples (FedFomo, spec 5.6).

    The server sends the `models` models of greatest affinity so far; each of them is replaced by a random one with
    probability `explore`, which falls by `decay` each round."""

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
        """The best of those available, some of them replaced; equals are drawn at random."""
        pool = rng.permutation(np.asarray(available, dtype=np.int64))
        ranked = pool[np.argsort(-known[AFFINITY].cpu().numpy()[pool], kind="stable")]
        best, others = ranked[: self.models], ranked[self.models :]
        curious = rng.random(len(best)) < self.explore - self.decay * (round - 1)
        instead = rng.permutation(others)[: curious.sum()]
        return tuple(int(k) for k in (*best[~curious], *best[curious][len(instead) :], *instead))

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
        """What each offer is worth, not clipped [M, G]."""
        before = at.loss(at.received)
        gains = torch.stack([before - at.loss({**at.received, **fetch()}) for fetch in at.offered])
        return gains / (torch.stack([_distance(fetch(), at) for fetch in at.offered]) + _SMALLEST)


def _distance(theirs: Tensors, at: VisitStart) -> Tensor:
    """‖θ_j − θ_k‖ [G]."""
    squares = [(theirs[name] - at.received[name]).flatten(1).square().sum(dim=1) for name in at.parameters]
    return torch.stack(squares).sum(dim=0).sqrt()
