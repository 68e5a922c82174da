"""Robust server rules: functions of the single uploads that replace the mean, in rounds with malicious participants.

K participants, uploads [K, *]. A rule that compares whole uploads takes all parameters that travel as one vector with
the length ‖·‖. Sums are taken client by client (sums.py), so that the number of threads changes no bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from torso.kinds import Count, CountOrZero, Positive
from torso.learn.stacked import client_norms, per_client
from torso.nets import Tensors
from torso.server.rules import RuleStep, ServerRule, servers
from torso.server.sums import add_stacked, add_weighted

Trimmed = Annotated[float, Field(gt=0, lt=0.5)]  # with 0.5 at either end no upload would be left


class RobustRule(ServerRule):
    """The base class of robust rules: the result of `combine` is the next shared part."""

    needs_each: ClassVar[bool] = True

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep(state, mean)


@servers.register("median")
@dataclass(frozen=True)
class Median(RobustRule):
    """The median of the uploads, number by number; for an even number of uploads, the mean of the middle two. All
    uploads have the same weight, whatever the number of samples (Yin et al. 2018)."""

    takes_statistics: ClassVar[bool] = True

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        return {name: median(tensor) for name, tensor in uploads.items()}


@servers.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(RobustRule):
    """The mean without the ⌊share · K⌋ largest and as many smallest values, number by number. All uploads have the same
    weight, whatever the number of samples (Yin et al. 2018)."""

    share: Trimmed = 0.2
    takes_statistics: ClassVar[bool] = True
    minimum_option: ClassVar[str] = "share"

    @property
    def least(self) -> int:
        """With fewer uploads, none would be left out."""
        return math.ceil(1 / self.share - 1e-9)

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        out = math.floor(self.share * len(weights) + 1e-9)
        return {name: mean_of(t.sort(dim=0).values[out : len(t) - out]) for name, t in uploads.items()}


@servers.register("krum")
@dataclass(frozen=True)
class Krum(RobustRule):
    """The upload with the smallest Σ‖θ_k − θ_j‖² over its K − f − 2 nearest others j; with m > 1 (Multi-Krum) the plain
    mean of the m uploads with the smallest sums. All uploads have the same weight, whatever the number of samples
    (Blanchard et al. 2017)."""

    f: CountOrZero = 1
    m: Count = 1
    minimum_option: ClassVar[str] = "f"

    @property
    def least(self) -> int:
        """K > 2f + 2, as the paper demands, and at least m honest uploads to choose from."""
        return max(2 * self.f + 3, self.m + self.f)

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        clients = len(weights)
        squares = torch.stack(
            [client_norms(minus(uploads, client_at(uploads, k))).square() for k in range(clients)]
        )  # [K, K]
        nearest = squares.sort(dim=1).values[:, 1 : clients - self.f - 1]  # place 0 is the upload itself
        best = nearest.sum(dim=1).sort(stable=True).indices[: self.m]
        return {name: mean_of(tensor[best]) for name, tensor in uploads.items()}


@servers.register("geometric-median")
@dataclass(frozen=True)
class GeometricMedian(RobustRule):
    """The geometric median: the point z with the smallest Σ w_k‖θ_k − z‖, with w_k by samples (RFA, Pillutla et al.
    2022).

    It takes Weiszfeld's steps z ← z + Σ β_k(θ_k − z) / Σ β_k with β_k = w_k / ‖θ_k − z‖, from the median; if z is one
    of the uploads, the step of Vardi and Zhang (2000). It ends after `steps` steps, or when a step is shorter than
    `tolerance` times the median distance of the uploads from z."""

    steps: Count = 100
    tolerance: Positive = 1e-6
    takes_statistics: ClassVar[bool] = True

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        point = {name: median(tensor) for name, tensor in uploads.items()}
        for _ in range(self.steps):
            differences = minus(uploads, point)
            distances = client_norms(differences)
            betas = torch.where(distances > 0, weights / distances, torch.zeros_like(distances))
            direction: Tensors = {}
            add_weighted(direction, differences, betas)
            length = client_norms({name: tensor[None] for name, tensor in direction.items()})[0]
            if not bool(length > 0):  # z is the minimum
                break
            here = torch.where(distances > 0, torch.zeros_like(distances), weights).sum()  # weight of uploads at z
            share = (1 - here / length).clamp(min=0) / betas.sum()
            point = {name: tensor + share * direction[name] for name, tensor in point.items()}
            if bool(share * length <= self.tolerance * distances.median()):
                break
        return point


@servers.register("centred-clipping")
@dataclass(frozen=True)
class CentredClipping(RobustRule):
    """Centred clipping: v ← v + (1/K) Σ (θ_k − v) · min(1, radius / ‖θ_k − v‖), `steps` times, from v = θ + the change
    of the last round. All uploads have the same weight, whatever the number of samples (Karimireddy et al. 2021)."""

    radius: Positive = 1.0
    steps: Count = 1

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        centre = {name: tensor + state.get(f"last.{name}", 0.0) for name, tensor in old.items()}
        for _ in range(self.steps):
            differences = minus(uploads, centre)
            step: Tensors = {}
            add_weighted(step, differences, (self.radius / client_norms(differences)).clamp(max=1) / len(weights))
            centre = {name: tensor + step[name] for name, tensor in centre.items()}
        return centre

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep({f"last.{name}": mean[name] - tensor for name, tensor in old.items()}, mean)


def clipped_uploads(uploads: Tensors, old: Tensors, bound: float) -> Tensors:
    """Clipped uploads [K, *]: θ + (θ_k − θ) · min(1, bound / ‖θ_k − θ‖). An upload within the bound keeps its bits."""
    change = minus(uploads, old)
    share = bound / client_norms(change)
    return {
        name: torch.where(per_client(share < 1, tensor), old[name] + change[name] * per_client(share, tensor), tensor)
        for name, tensor in uploads.items()
    }


def median(stacked: Tensor) -> Tensor:
    """The median over the first dimension, number by number."""
    ordered, half = stacked.sort(dim=0).values, len(stacked) // 2
    low, high = ordered[(len(stacked) - 1) // 2], ordered[half]
    return low + (high - low) / 2


def mean_of(stacked: Tensor) -> Tensor:
    """The plain mean over the first dimension, computed from differences to the first row: the mean of equal rows has
    the same bits as the rows."""
    total: Tensors = {}
    add_stacked(total, {"": stacked - stacked[0]})
    return stacked[0] + total[""] / len(stacked)


def minus(stacked: Tensors, tensors: Tensors) -> Tensors:
    """Each client's tensors [K, *] minus common ones [*]."""
    return {name: tensor - tensors[name] for name, tensor in stacked.items()}


def client_at(stacked: Tensors, place: int) -> Tensors:
    """The tensors [*] of the client at one place of stacked tensors [K, *]."""
    return {name: tensor[place] for name, tensor in stacked.items()}
