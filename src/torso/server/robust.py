"""Server rules that hold where some participants lie: each gives what stands for the mean, from the single uploads.

K participants, uploads [K, *]. A rule that compares whole uploads takes all parameters that travel as one vector, whose
length is ‖·‖. Sums over clients are taken one client after the other (sums.py), so that threads change no bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from torso.kinds import Count, CountOrZero, Positive
from torso.learn.stacked import lengths, per_client
from torso.nets import Tensors
from torso.server.rules import RuleStep, ServerRule, servers
from torso.server.sums import add_stacked, add_weighted

Trimmed = Annotated[float, Field(gt=0, lt=0.5)]  # half of the uploads at either end would leave nothing


class RobustRule(ServerRule):
    """The next shared part is what the rule makes of the single uploads."""

    needs_each: ClassVar[bool] = True

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep(state, mean)


@servers.register("median")
@dataclass(frozen=True)
class Median(RobustRule):
    """The median of the uploads, number by number; of an even count, halfway between the two in the middle. Samples do
    not count (Yin et al. 2018)."""

    takes_statistics: ClassVar[bool] = True

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        return {name: median(tensor) for name, tensor in uploads.items()}


@servers.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(RobustRule):
    """The mean without the ⌊share · K⌋ largest and as many smallest, number by number. Samples do not count (Yin et al.
    2018)."""

    share: Trimmed = 0.2
    takes_statistics: ClassVar[bool] = True
    least_by: ClassVar[str] = "share"

    @property
    def least(self) -> int:
        """With fewer nobody is left out."""
        return math.ceil(1 / self.share - 1e-9)

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        out = math.floor(self.share * len(weights) + 1e-9)
        return {name: mean_of(t.sort(dim=0).values[out : len(t) - out]) for name, t in uploads.items()}


@servers.register("krum")
@dataclass(frozen=True)
class Krum(RobustRule):
    """The upload with the smallest Σ‖θ_k − θ_j‖² over its K − f − 2 nearest others j; with m > 1 (Multi-Krum) the plain
    mean of the m uploads with the smallest sums. Samples do not count (Blanchard et al. 2017)."""

    f: CountOrZero = 1
    m: Count = 1
    least_by: ClassVar[str] = "f"

    @property
    def least(self) -> int:
        """2f + 2 < K, as the paper asks, and m honest ones to choose."""
        return max(2 * self.f + 3, self.m + self.f)

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        clients = len(weights)
        apart = torch.stack([lengths(less(uploads, one(uploads, k))).square() for k in range(clients)])
        nearest = apart.sort(dim=1).values[:, 1 : clients - self.f - 1]  # the nearest of all is the upload itself
        best = nearest.sum(dim=1).sort(stable=True).indices[: self.m]
        return {name: mean_of(tensor[best]) for name, tensor in uploads.items()}


@servers.register("geometric-median")
@dataclass(frozen=True)
class GeometricMedian(RobustRule):
    """The point z with the smallest Σ w_k‖θ_k − z‖, w_k by samples (RFA, Pillutla et al. 2022).

    Weiszfeld's steps z ← z + Σ β_k(θ_k − z) / Σ β_k with β_k = w_k / ‖θ_k − z‖, from the median; on an upload itself
    the step of Vardi and Zhang (2000). It ends after `steps`, or when a step is shorter than `tolerance` times the
    median distance of the uploads from z."""

    steps: Count = 100
    tolerance: Positive = 1e-6
    takes_statistics: ClassVar[bool] = True

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        at = {name: median(tensor) for name, tensor in uploads.items()}
        for _ in range(self.steps):
            away = less(uploads, at)
            far = lengths(away)
            pull = torch.where(far > 0, weights / far, torch.zeros_like(far))
            way: Tensors = {}
            add_weighted(way, away, pull)
            length = lengths({name: tensor[None] for name, tensor in way.items()})[0]
            if not bool(length > 0):  # the pulls balance
                break
            here = torch.where(far > 0, torch.zeros_like(far), weights).sum()  # the weight of uploads at z itself
            share = (1 - here / length).clamp(min=0) / pull.sum()
            at = {name: tensor + share * way[name] for name, tensor in at.items()}
            if bool(share * length <= self.tolerance * far.median()):
                break
        return at


@servers.register("centred-clipping")
@dataclass(frozen=True)
class CentredClipping(RobustRule):
    """v ← v + (1/K) Σ (θ_k − v) · min(1, radius / ‖θ_k − v‖), `steps` times, from v = θ + the change of the last round.
    Samples do not count (Karimireddy et al. 2021)."""

    radius: Positive = 1.0
    steps: Count = 1

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        at = {name: tensor + state.get(f"last.{name}", 0.0) for name, tensor in old.items()}
        for _ in range(self.steps):
            away = less(uploads, at)
            step: Tensors = {}
            add_weighted(step, away, (self.radius / lengths(away)).clamp(max=1) / len(weights))
            at = {name: tensor + step[name] for name, tensor in at.items()}
        return at

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep({f"last.{name}": mean[name] - tensor for name, tensor in old.items()}, mean)


def clipped(uploads: Tensors, old: Tensors, bound: float) -> Tensors:
    """θ + (θ_k − θ) · min(1, bound / ‖θ_k − θ‖) for each upload [K, *]; one within the bound comes back bit for bit."""
    change = less(uploads, old)
    share = bound / lengths(change)
    return {
        name: torch.where(per_client(share < 1, tensor), old[name] + change[name] * per_client(share, tensor), tensor)
        for name, tensor in uploads.items()
    }


def median(stacked: Tensor) -> Tensor:
    """Over the first dimension, number by number."""
    ordered, half = stacked.sort(dim=0).values, len(stacked) // 2
    low, high = ordered[(len(stacked) - 1) // 2], ordered[half]
    return low + (high - low) / 2


def mean_of(stacked: Tensor) -> Tensor:
    """The plain mean over the first dimension, from its first row: of equal rows it is that row bit for bit."""
    total: Tensors = {}
    add_stacked(total, {"": stacked - stacked[0]})
    return stacked[0] + total[""] / len(stacked)


def less(stacked: Tensors, tensors: Tensors) -> Tensors:
    return {name: tensor - tensors[name] for name, tensor in stacked.items()}


def one(stacked: Tensors, place: int) -> Tensors:
    return {name: tensor[place] for name, tensor in stacked.items()}
