"""Losses that compare a client's model with fixed models (teachers) or with statistics from the server.

There are two teachers, and both are on the client already, so nothing more travels: `start`, the model at the start of
the visit, and `previous`, the model at the end of the client's previous visit, which the client keeps. Teachers compute
in evaluation mode. G clients, B samples, C classes, d features.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.kinds import NotNegative, Positive
from torso.learn.objectives import CrossEntropy, Objective, Stacks, cross_entropy, objectives
from torso.nets import Network, Output, Tensors, apply, set_modes

PREVIOUS_PREFIX = "previous."  # prefix of the previous model's tensors in a client's notes
TOLD_PREFIX = "told."  # prefix of the statistics that the server has sent (server/statistics.py) in a client's notes


class TeacherObjective(Objective):
    """The base class of losses that add a term of comparison to the cross-entropy.

    `teachers` names what the term needs: an output of a teacher, such as `start.logits` or `previous.features`, or
    `told.NAME`, a statistic that the server has sent."""

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def of_statistics(self, told: Tensors, labels: Tensor) -> Tensors:
        """The server's statistics [G, *] for each sample of a batch [G, B, …]. By default they are tensors by class
        [G, C, …], of which a sample gets the row of its label."""
        return {name: at_class(tensor, labels) for name, tensor in told.items()}

    @abstractmethod
    def against(self, said: Output, labels: Tensor, taught: Tensors) -> Tensor:
        """The term that is added to the cross-entropy [G, B]. `taught` [G, B, …] has what `teachers` names."""

    def of_batch(self, said: Output, real: Tensor | None, taught: Tensors) -> Tensor | None:
        """A term of each client's whole batch [G], added to its mean loss; None: there is none. `real` [G, B] is 0 for
        padding."""
        return None

    def for_fine_tuning(self) -> Objective:
        return CrossEntropy()


def teachers_of(objective: Objective) -> tuple[str, ...]:
    """The teachers whose outputs the objective needs."""
    models = (what.partition(".")[0] for what in objective.teachers if not what.startswith(TOLD_PREFIX))
    return tuple(dict.fromkeys(models))


def hears(objective: Objective) -> tuple[str, ...]:
    """The names of the server's statistics that the objective needs."""
    return tuple(what.removeprefix(TOLD_PREFIX) for what in objective.teachers if what.startswith(TOLD_PREFIX))


def at_class(values: Tensor, labels: Tensor) -> Tensor:
    """Values [G, C, …] at labels [G, B]: [G, B, …]."""
    clients = torch.arange(len(labels), device=labels.device).unsqueeze(1)
    return values[clients, labels]


def remembers(objective: Objective) -> bool:
    """Whether a client keeps the model that its visit leaves, for the next one."""
    return "previous" in teachers_of(objective)


def teacher_tensors(name: str, start: Tensors, notes: Tensors) -> Tensors:
    """A teacher's tensors [G, *]. A client without a previous visit uses the model at the start of this one."""
    return start if name == "start" else {n: notes.get(f"{PREVIOUS_PREFIX}{n}", t) for n, t in start.items()}


@torch.no_grad()
def answers(
    net: Network, objective: Objective, models: dict[str, Tensors], inputs: Tensor, real: Tensor | None
) -> Tensors:
    """The teachers' outputs for a batch [G, B, …], by the names in `objective.teachers`, such as `start.logits`.

    The network is left in evaluation mode."""
    set_modes(net, frozenset())
    said = {name: apply(net, models[name], inputs, real) for name in teachers_of(objective)}
    found = (what.split(".") for what in objective.teachers if not what.startswith(TOLD_PREFIX))
    return {f"{name}.{field}": getattr(said[name], field) for name, field in found}


@objectives.register("not-true")
@dataclass(frozen=True)
class NotTrue(TeacherObjective):
    """Cross-entropy + β·KL(q̃ᵍ ‖ q̃), with q̃ᵍ and q̃ the soft-max of the received model
    and of the client's model at temperature τ, over the classes that are not the label (FedNTD, spec 19.4).

    `scale = "tau-squared"` multiplies the second term by τ², as the authors' code does."""

    beta: NotNegative = 1.0
    tau: Positive = 1.0
    scale: Literal["none", "tau-squared"] = "none"

    @property
    def teachers(self) -> tuple[str, ...]:
        return ("start.logits",) if self.beta else ()

    def against(self, said: Output, labels: Tensor, taught: Tensors) -> Tensor:
        own = _not_true(said.logits / self.tau, labels)
        received = _not_true(taught["start.logits"] / self.tau, labels)
        divergence = (received.exp() * (received - own)).sum(dim=-1)
        return self.beta * (self.tau**2 if self.scale == "tau-squared" else 1.0) * divergence


def _not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities [G, B, C − 1] among the classes that are not the label."""
    classes = logits.shape[-1]
    others = torch.arange(classes - 1, device=labels.device).expand(*labels.shape, -1)
    others = others + (others >= labels.unsqueeze(-1))  # 0 … C − 1 without the label
    return F.log_softmax(logits.gather(-1, others), dim=-1)


@objectives.register("contrast")
@dataclass(frozen=True)
class Contrast(TeacherObjective):
    """Cross-entropy − μ·log(e^(s_g/τ) / (e^(s_g/τ) + e^(s_p/τ))), where s_g and s_p are the cosines of the features
    with those of the received model and of the client's own previous one (MOON, spec 19.5)."""

    mu: NotNegative = 1.0
    tau: Positive = 0.5
    stacks: ClassVar[Stacks] = "none"  # torch's cosine is rounded by the size of the stack

    @property
    def teachers(self) -> tuple[str, ...]:
        return ("start.features", "previous.features") if self.mu else ()

    def against(self, said: Output, labels: Tensor, taught: Tensors) -> Tensor:
        to_received, to_previous = (F.cosine_similarity(said.features, taught[what], dim=-1) for what in self.teachers)
        return self.mu * F.softplus((to_previous - to_received) / self.tau)


@objectives.register("prototypes")
@dataclass(frozen=True)
class Prototypical(TeacherObjective):
    """Cross-entropy + λ·(the mean over features of (f − m_y)²), with m_y the global class mean of the label's class.
    For a class without a global mean the term is 0 (FedProto, spec 19.12; FedPAC, spec 19.13).

    `over = "sum"` takes the sum over features instead of the mean."""

    lam: NotNegative = 1.0
    over: Literal["mean", "sum"] = "mean"

    @property
    def teachers(self) -> tuple[str, ...]:
        return (f"{TOLD_PREFIX}means", f"{TOLD_PREFIX}known") if self.lam else ()

    def against(self, said: Output, labels: Tensor, taught: Tensors) -> Tensor:
        squares = (said.features - taught[f"{TOLD_PREFIX}means"]).square()
        far = squares.mean(dim=-1) if self.over == "mean" else squares.sum(dim=-1)
        return self.lam * taught[f"{TOLD_PREFIX}known"] * far


@objectives.register("mean-regularised")
@dataclass(frozen=True)
class MeanRegularised(TeacherObjective):
    """Cross-entropy + κ·½·(the mean over features of (f̄ − z̄)²), with f̄ the mean feature of the batch and z̄ the
    consensus of all clients. Before there is a consensus the term is 0 (FedDBE, spec 19.15)."""

    kappa: NotNegative = 50.0

    @property
    def teachers(self) -> tuple[str, ...]:
        return (f"{TOLD_PREFIX}consensus", f"{TOLD_PREFIX}established") if self.kappa else ()

    def of_statistics(self, told: Tensors, labels: Tensor) -> Tensors:
        return {name: t.unsqueeze(1).expand(*labels.shape, *t.shape[1:]) for name, t in told.items()}

    def against(self, said: Output, labels: Tensor, taught: Tensors) -> Tensor:
        return said.features.new_zeros(labels.shape)

    def of_batch(self, said: Output, real: Tensor | None, taught: Tensors) -> Tensor:
        here = torch.ones_like(said.features[..., 0]) if real is None else real
        mean = (said.features * here.unsqueeze(-1)).sum(dim=1) / here.sum(dim=1, keepdim=True).clamp(min=1)
        far = (mean - taught[f"{TOLD_PREFIX}consensus"][:, 0]).square().mean(dim=-1)
        return self.kappa / 2 * taught[f"{TOLD_PREFIX}established"][:, 0] * far
