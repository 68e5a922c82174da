"""Objectives: losses per sample, of which the local loop takes the mean over each client's batch.

G clients, B samples, C classes, d features. `counts` [G, C] is the number of training samples that a client has of each
class, fixed before training. The balanced losses of spec 6.1 weight by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Batch
from torso.kinds import Chance, NotNegative, Positive
from torso.nets import Network, Output
from torso.registry import Registry

Stacks = Literal["any", "equal", "none"]
"""In which stacks a client gets, on CPU, the same bits as alone: any stack; stacks of clients with as many samples
(`equal`); none."""


class Objective(ABC):
    """The base class of losses. A subclass implements `per_sample`."""

    stacks: ClassVar[Stacks] = "any"

    @abstractmethod
    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """The losses [G, B], from features [G, B, d], logits [G, B, C], labels [G, B] and class counts [G, C]."""

    def of_output(self, said: Output, batch: Batch, counts: Tensor) -> Tensor:
        """The losses [G, B] of a network's whole output. Override it if the loss needs more than features and
        logits."""
        return self.per_sample(said.features, said.logits, batch.labels, counts)

    def check(self, net: Network) -> None:  # noqa: B027 — most losses take any network
        """Refuse a network without the outputs that the loss needs."""

    def for_fine_tuning(self) -> Objective:
        """The loss for fine-tuning a client's own model. Losses that balance classes, or that pull towards a model of
        others, only serve the shared model: they are replaced by cross-entropy (spec 6.6)."""
        return self

    @property
    def teachers(self) -> tuple[str, ...]:
        """The outputs of fixed models that the loss compares with, such as `start.logits` (teachers.py). The models are
        `start`, at the start of the visit, and `previous`, at the end of the client's previous visit."""
        return ()

    def without_teachers(self) -> Objective:
        """The loss to use if there is no teacher to compare with."""
        return self.for_fine_tuning() if self.teachers else self


objectives: Registry[type[Objective]] = Registry("method.objective")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropies [G, B] of logits [G, B, C] at labels [G, B]."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def class_shares(counts: Tensor) -> Tensor:
    """Each client's samples of a class, divided by its mean over all classes [G, C]: 1 everywhere without label
    skew."""
    return counts * counts.shape[1] / counts.sum(dim=1, keepdim=True).clamp(min=1)


def at_label(values: Tensor, labels: Tensor) -> Tensor:
    """Values [G, C] at labels [G, B]."""
    return values.gather(1, labels)


@objectives.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Cross-entropy: −log softmax(logits) at the label."""

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return cross_entropy(logits, labels)


@objectives.register("mse")
@dataclass(frozen=True)
class SquaredError(Objective):
    """Squared error: the mean (or the sum) over classes of (logit − one-hot)² (SphereFed, spec 8.3)."""

    over_classes: Literal["mean", "sum"] = "mean"

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        squares = (logits - F.one_hot(labels, logits.shape[-1])).square()
        return squares.mean(dim=-1) if self.over_classes == "mean" else squares.sum(dim=-1)


@objectives.register("feature-norm")
@dataclass(frozen=True)
class FeatureNorm(Objective):
    """Cross-entropy + μ·‖features‖. The norm is not squared; its gradient at 0 is 0 (FedFR, spec 8.2)."""

    mu: NotNegative = 0.005

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(features, dim=-1)
        return cross_entropy(logits, labels) + self.mu * length


class _Balanced(Objective):
    """The base class of losses that balance classes for the shared model; fine-tuning uses cross-entropy instead."""

    def for_fine_tuning(self) -> Objective:
        return CrossEntropy()


@objectives.register("reweighted")
@dataclass(frozen=True)
class Reweighted(_Balanced):
    """Cross-entropy times Σ_c N_c / N_y; `normalize` divides by the number of classes that the client has (IR, spec
    6.1)."""

    normalize: bool = True

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        share = counts.sum(dim=1, keepdim=True) / counts.clamp(min=1)
        if self.normalize:
            share = share / (counts > 0).sum(dim=1, keepdim=True).clamp(min=1)
        return at_label(share, labels) * cross_entropy(logits, labels)


@objectives.register("ldam")
@dataclass(frozen=True)
class Margin(_Balanced):
    """Cross-entropy after the margin γ·N_y^(−1/4) is subtracted from the label's logit (LDAM, spec 6.1).

    `form = "original"` scales a client's margins so that the largest is `gamma`, and multiplies logits by `scale`."""

    gamma: Positive = 0.5
    form: Literal["paper", "original"] = "paper"
    scale: Positive = 30.0

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        margins = self.gamma * counts.clamp(min=1).to(logits.dtype) ** -0.25
        if self.form == "original":
            present = torch.where(counts > 0, margins, 0.0).amax(dim=1, keepdim=True)
            margins = margins * (self.gamma / present)
        one_hot = F.one_hot(labels, logits.shape[-1])
        shifted = logits - at_label(margins, labels).unsqueeze(-1) * one_hot
        return cross_entropy(shifted * self.scale if self.form == "original" else shifted, labels)


@objectives.register("cdt")
@dataclass(frozen=True)
class ClassTemperature(_Balanced):
    """Cross-entropy of (N_c/N_max)^γ·logit. A class that the client lacks stays in the soft-max with a logit of 0 (CDT,
    spec 6.1)."""

    gamma: NotNegative = 0.3

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        share = counts / counts.amax(dim=1, keepdim=True).clamp(min=1)
        return cross_entropy(logits * (share**self.gamma).unsqueeze(1), labels)  # 0⁰ = 1


@objectives.register("class-shares")
@dataclass(frozen=True)
class ClassShares(_Balanced):
    """Cross-entropy of share_c^γ·logit. The share is N_c divided by its mean over all classes, also those that the
    client lacks (FedGELA, spec 19.10)."""

    gamma: NotNegative = 1.0

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return cross_entropy(logits * (class_shares(counts) ** self.gamma).unsqueeze(1), labels)  # 0⁰ = 1


def balanced_softmax(
    logits: Tensor, labels: Tensor, counts: Tensor, gamma: Tensor | float, *, absent_as_one: bool = False
) -> Tensor:
    """Cross-entropies [G, B] of logit + γ·log N_c; γ is a number or [G, 1].

    A class that the client lacks is masked out of the soft-max after the offset is added, so that γ can be learned
    (γ·log 0 has no gradient). `absent_as_one` gives such a class one sample instead, for labels that the client has
    never seen (spec 6.1)."""
    offset = gamma * counts.clamp(min=1).to(logits.dtype).log()
    shifted = logits + offset.unsqueeze(1)
    if not absent_as_one:
        shifted = shifted.masked_fill((counts == 0).unsqueeze(1), -torch.inf)
    return cross_entropy(shifted, labels)


@objectives.register("balanced-softmax")
@dataclass(frozen=True)
class BalancedSoftmax(_Balanced):
    """Cross-entropy of logit + γ·log N_c. Classes that the client lacks are left out of the soft-max unless γ = 0 (BSM,
    spec 6.1)."""

    gamma: NotNegative = 1.0

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        if self.gamma == 0:
            return cross_entropy(logits, labels)
        return balanced_softmax(logits, labels, counts, self.gamma)


@objectives.register("calibrated")
@dataclass(frozen=True)
class Calibrated(_Balanced):
    """Cross-entropy of logit − τ·N_c^(−1/4) for every class. Classes that the client lacks are left out of the soft-max
    unless τ = 0 (FedLC, spec 19.2).

    `among = "others"` sums in the soft-max only over the other classes, as some read the paper; that loss has no lower
    bound."""

    tau: NotNegative = 1.0
    among: Literal["all", "others"] = "all"

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        shifted = logits
        if self.tau > 0:
            margins = self.tau * counts.clamp(min=1).to(logits.dtype) ** -0.25
            shifted = (logits - margins.unsqueeze(1)).masked_fill((counts == 0).unsqueeze(1), -torch.inf)
        if self.among == "all":
            return cross_entropy(shifted, labels)
        others = shifted.masked_fill(F.one_hot(labels, logits.shape[-1]).bool(), -torch.inf)
        # a client with a single class has no other class: the sum is empty and counts as 0
        least = torch.finfo(logits.dtype).min
        log_sum = torch.where(others.isfinite().any(dim=-1), others.clamp(min=least).logsumexp(dim=-1), 0.0)
        return log_sum - shifted.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


@objectives.register("restricted")
@dataclass(frozen=True)
class Restricted(_Balanced):
    """Cross-entropy after the logits of classes that the client lacks are multiplied by α (FedRS, spec 19.3).

    `form = "shares"` multiplies every logit by α + (1 − α)·N_c / N_max, as the authors' code does at first."""

    alpha: Chance = 0.5
    form: Literal["missing", "shares"] = "missing"

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        present = (counts > 0).to(logits.dtype)
        if self.form == "shares":
            present = counts / counts.amax(dim=1, keepdim=True).clamp(min=1)
        return cross_entropy(logits * (self.alpha + (1 - self.alpha) * present).unsqueeze(1), labels)
