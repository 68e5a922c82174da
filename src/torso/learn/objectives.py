"""What is a good prediction? One loss per sample; the local loop takes the mean over each client's batch.

G clients, B samples, C classes, d features. `counts` [G, C] are the training samples that a client has of each class,
fixed before training: what the balanced losses of spec 6.1 weigh by.
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
"""Beside whom a client has the bits in a stack that it has alone, on CPU: anybody, clients of its size, or nobody."""


class Objective(ABC):
    """The base of losses."""

    stacks: ClassVar[Stacks] = "any"

    @abstractmethod
    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Features [G, B, d], logits [G, B, C], labels [G, B], counts [G, C] → losses [G, B]."""

    def of_output(self, said: Output, batch: Batch, counts: Tensor) -> Tensor:
        """Losses [G, B] of all that a network says; for losses that look at more than features and logits."""
        return self.per_sample(said.features, said.logits, batch.labels, counts)

    def check(self, net: Network) -> None:  # noqa: B027 — most losses take any network
        """Refuse a network that does not say what the loss looks at."""

    def for_itself(self) -> Objective:
        """What a client minimises when it fine-tunes its own copy: a loss that balances classes for the sake of the
        others, or that holds on to a model of theirs, gives way to cross-entropy (spec 6.6)."""
        return self

    @property
    def teachers(self) -> tuple[str, ...]:
        """The models that do not learn and that it compares with (taught.py): `start`, with which the visit began,
        and `previous`, which the client's visit before left."""
        return ()

    def untaught(self) -> Objective:
        """The same where there is no model to compare with."""
        return self.for_itself() if self.teachers else self


objectives: Registry[type[Objective]] = Registry("method.objective")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def class_shares(counts: Tensor) -> Tensor:
    """Samples of each class over the mean of all classes [G, C]: 1 everywhere on a client without skew."""
    return counts * counts.shape[1] / counts.sum(dim=1, keepdim=True).clamp(min=1)


def at_label(values: Tensor, labels: Tensor) -> Tensor:
    """Values [G, C] at labels [G, B]."""
    return values.gather(1, labels)


@objectives.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """−log softmax(logits) at the label."""

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return cross_entropy(logits, labels)


@objectives.register("mse")
@dataclass(frozen=True)
class SquaredError(Objective):
    """The mean (or the sum) over classes of (logit − one-hot)² (SphereFed, spec 8.3)."""

    over_classes: Literal["mean", "sum"] = "mean"

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        squares = (logits - F.one_hot(labels, logits.shape[-1])).square()
        return squares.mean(dim=-1) if self.over_classes == "mean" else squares.sum(dim=-1)


@objectives.register("feature-norm")
@dataclass(frozen=True)
class FeatureNorm(Objective):
    """Cross-entropy + μ·‖features‖, the norm not squared, its gradient 0 at 0 (FedFR, spec 8.2)."""

    mu: NotNegative = 0.005

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(features, dim=-1)
        return cross_entropy(logits, labels) + self.mu * length


class _Balanced(Objective):
    def for_itself(self) -> Objective:
        return CrossEntropy()


@objectives.register("reweighted")
@dataclass(frozen=True)
class Reweighted(_Balanced):
    """Cross-entropy times Σ_c N_c / N_y; `normalize` divides by the number of classes present (IR, spec 6.1)."""

    normalize: bool = True

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        share = counts.sum(dim=1, keepdim=True) / counts.clamp(min=1)
        if self.normalize:
            share = share / (counts > 0).sum(dim=1, keepdim=True).clamp(min=1)
        return at_label(share, labels) * cross_entropy(logits, labels)


@objectives.register("ldam")
@dataclass(frozen=True)
class Margin(_Balanced):
    """Cross-entropy after Δ = γ·N_y^(−1/4) is taken off the label's logit (LDAM, spec 6.1).

    `form = "original"` scales a client's margins so that the largest is `gamma` and multiplies logits by `scale`."""

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
    """Cross-entropy of (N_c/N_max)^γ·logit; an absent class keeps a logit of 0 in the sum (CDT, spec 6.1)."""

    gamma: NotNegative = 0.3

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        share = counts / counts.amax(dim=1, keepdim=True).clamp(min=1)
        return cross_entropy(logits * (share**self.gamma).unsqueeze(1), labels)  # 0⁰ = 1


@objectives.register("class-shares")
@dataclass(frozen=True)
class ClassShares(_Balanced):
    """Cross-entropy of share_c^γ·logit, with N_c over the mean of all classes as the share, absent ones too (FedGELA,
    spec 19.10)."""

    gamma: NotNegative = 1.0

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return cross_entropy(logits * (class_shares(counts) ** self.gamma).unsqueeze(1), labels)  # 0⁰ = 1


def balanced_softmax(
    logits: Tensor, labels: Tensor, counts: Tensor, gamma: Tensor | float, *, absent_as_one: bool = False
) -> Tensor:
    """Cross-entropy of logit + γ·log N_c [G, B]; γ a number or [G, 1].

    An absent class leaves the soft-max after the offset is made, so that γ can be learned (γ·log 0 has no gradient);
    `absent_as_one`: it counts as one sample instead, for labels that the client has never seen (spec 6.1)."""
    offset = gamma * counts.clamp(min=1).to(logits.dtype).log()
    shifted = logits + offset.unsqueeze(1)
    if not absent_as_one:
        shifted = shifted.masked_fill((counts == 0).unsqueeze(1), -torch.inf)
    return cross_entropy(shifted, labels)


@objectives.register("balanced-softmax")
@dataclass(frozen=True)
class BalancedSoftmax(_Balanced):
    """Cross-entropy of logit + γ·log N_c; an absent class leaves the soft-max unless γ = 0 (BSM, spec 6.1)."""

    gamma: NotNegative = 1.0

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        if self.gamma == 0:
            return cross_entropy(logits, labels)
        return balanced_softmax(logits, labels, counts, self.gamma)


@objectives.register("calibrated")
@dataclass(frozen=True)
class Calibrated(_Balanced):
    """Cross-entropy of logit − τ·N_c^(−1/4), for every class; an absent class leaves the soft-max unless τ = 0
    (FedLC, spec 19.2).

    `among = "others"` sums over the other classes alone, as some read the paper; that loss has no lower bound."""

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
        # a client with a single class has no others: the sum is empty, and the loss nothing
        least = torch.finfo(logits.dtype).min
        against = torch.where(others.isfinite().any(dim=-1), others.clamp(min=least).logsumexp(dim=-1), 0.0)
        return against - shifted.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


@objectives.register("restricted")
@dataclass(frozen=True)
class Restricted(_Balanced):
    """Cross-entropy in which the logits of classes that the client lacks are multiplied by α (FedRS, spec 19.3).

    `form = "shares"`: every logit by α + (1 − α)·N_c / N_max, as the authors' code begins."""

    alpha: Chance = 0.5
    form: Literal["missing", "shares"] = "missing"

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        present = (counts > 0).to(logits.dtype)
        if self.form == "shares":
            present = counts / counts.amax(dim=1, keepdim=True).clamp(min=1)
        return cross_entropy(logits * (self.alpha + (1 - self.alpha) * present).unsqueeze(1), labels)
