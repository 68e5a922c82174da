"""Classes as Gaussians with a common covariance: their estimates, and the linear head that they give (spec 19.16).

G clients, n samples, C classes, d features. μ [G, C, d], Σ [G, d, d]. Linear algebra is in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.errors import RequestError
from torso.kinds import Count, NotNegative, Positive
from torso.learn.outputs import one_hot_labels
from torso.learn.stacked import per_client
from torso.nets import Network, Tensors
from torso.nets.layers import Linear
from torso.server.statistics import Declared, RoundStatistics, ServerView, Statistic, Statistics, VisitEnd, statistics

MEANS, COVARIANCE, KNOWN = "means", "covariance", "known"
WEIGHT, BIAS = "head.weight", "head.bias"
_NEVER = -1e4  # the bias of a class that a client lacks


class Gaussians(NamedTuple):
    """The class means and the common covariance of G clients' features."""

    means: Tensor  # [G, C, d]
    covariance: Tensor  # [G, d, d]

    def mixed(self, other: Gaussians, betas: Tensor) -> Gaussians:
        """β·self + (1 − β)·other. `betas` [2, G]: β of the means and of the covariance."""
        return Gaussians(*(b + per_client(beta, a) * (a - b) for a, b, beta in zip(self, other, betas, strict=True)))


class ClientFeatures(NamedTuple):
    """The features of clients' samples, with their labels."""

    features: Tensor  # [G, n, d]
    labels: Tensor  # [G, n]
    real: Tensor  # [G, n]: 0 for padding

    def only(self, chosen: Tensor) -> ClientFeatures:
        """The samples for which `chosen` [n] is 1; the others become padding."""
        return self._replace(real=self.real * chosen)

    def one_hot(self, classes: int) -> Tensor:
        """The labels as one-hot rows [G, n, C]; rows of padding are zero."""
        return F.one_hot(self.labels, classes).to(self.features.dtype) * self.real.unsqueeze(-1)


def head_of(found: Gaussians, counts: Tensor, ridge: float) -> Tensors:
    """The Bayes classifier: W_c = Σ⁻¹μ_c and b_c = log π_c − ½μ_cᵀΣ⁻¹μ_c, with π the client's class shares, from its
    class counts [G, C]."""
    means = found.means.double()
    return _head(_times_inverse(found.covariance, means, ridge), means, counts, found.means)


def _times_inverse(covariance: Tensor, rows: Tensor, ridge: float) -> Tensor:
    """Σ⁻¹ times each row [G, *, d], with `ridge` added to the diagonal of Σ."""
    wide = covariance.double() + ridge * torch.eye(covariance.shape[-1], device=covariance.device)
    factor, _ = torch.linalg.cholesky_ex(wide)
    return torch.cholesky_solve(rows.mT, factor).mT


def _head(weight: Tensor, means: Tensor, counts: Tensor, like: Tensor) -> Tensors:
    """The head's weight and bias from `weight` Σ⁻¹μ and `means` μ [G, C, d], in the dtype of `like`."""
    shares = (counts / counts.sum(dim=1, keepdim=True).clamp(min=1)).double()
    prior = torch.where(counts > 0, shares.clamp(min=torch.finfo(torch.float64).tiny).log(), _NEVER)
    bias = prior - (weight * means).sum(dim=-1) / 2
    return {WEIGHT: weight.to(like), BIAS: bias.to(like)}


def estimated(seen: ClientFeatures, told: Gaussians, floor: float) -> Gaussians:
    """The clients' own estimates: class means, and the covariance with `floor` added to its diagonal. A class without
    samples has the server's mean (`told`)."""
    member = seen.one_hot(told.means.shape[1])
    count = member.sum(dim=1)
    means = (member.mT @ seen.features) / count.clamp(min=1).unsqueeze(-1)
    means = torch.where((count > 0).unsqueeze(-1), means, told.means)
    centred = (seen.features - member @ means) * seen.real.unsqueeze(-1)
    size = count.sum(dim=1).clamp(min=1)
    covariance = (centred.mT @ centred) / per_client(size, told.covariance)
    return Gaussians(means, covariance + floor * torch.eye(covariance.shape[-1], device=covariance.device))


def loss_of(seen: ClientFeatures, head: Tensors) -> Tensor:
    """The cross-entropies of a head, summed over each client's samples [G]."""
    logits = seen.features @ head[WEIGHT].mT + head[BIAS].unsqueeze(1)
    losses = F.cross_entropy(logits.flatten(0, 1), seen.labels.flatten(), reduction="none").view_as(seen.real)
    return (losses * seen.real).sum(dim=1)


@statistics.register("gaussians")
@dataclass(frozen=True)
class GaussianClasses(Statistics):
    """Gaussian classes: clients send class means and the covariance of their features, each β times their own estimate
    plus 1 − β times the global one; the server averages them (pFedFDA, spec 19.16).

    β is the one of `steps` + 1 values from 0 to 1 with the lowest cross-entropy in `folds`-fold cross-validation;
    `betas = "two"`: one β for the means and one for the covariance. `floor` is added to the diagonal of a client's own
    covariance, `ridge` to that of any covariance before it is inverted."""

    folds: Count = 2
    steps: Count = 10
    betas: Literal["one", "two"] = "one"
    floor: NotNegative = 1.0
    ridge: Positive = 1e-4
    passes: ClassVar[float] = 1.0

    def check(self, net: Network, share: frozenset[str]) -> None:
        bias = any(name == "bias" for name, _ in net.head.named_parameters())
        if type(net.head) is not Linear or not bias or share.intersection(net.parts["head"]):
            raise RequestError(
                "method.statistics = 'gaussians' computes each client's head from class means and a covariance, which "
                "needs a linear head with a bias that is neither trained nor shared. Accepted: method.head = 'linear', "
                "model.head_bias = true, method.train and method.share = 'body'"
            )
        if self.folds < 2:
            raise RequestError(
                f"method.statistics.folds = {self.folds} leaves no samples for the estimates. Accepted: 2 or more"
            )

    def declares(self, net: Network, classes: int) -> Declared:
        d = net.body.features
        return {
            MEANS: Statistic((classes, d), "class means", "mean", counts=True),
            COVARIANCE: Statistic((d, d), "the covariance of its features", "mean", power=2),
        }

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        d = net.body.features
        return {MEANS: torch.zeros(classes, d), COVARIANCE: torch.eye(d), KNOWN: torch.zeros(())}

    def to_all(self, held: ServerView) -> Tensors:
        """The global means and covariance. Before the first uploads the means are the rows of the initial head: with
        the identity as covariance they give this head."""
        if not held.shared:
            return {}
        known = held.shared[KNOWN] > 0
        means = torch.where(known, held.shared[MEANS], held.model.get(WEIGHT, held.shared[MEANS]))
        return {MEANS: means, COVARIANCE: held.shared[COVARIANCE]}

    @torch.no_grad()
    def of_clients(self, at: VisitEnd) -> Tensors:
        told, seen = Gaussians(at.told[MEANS], at.told[COVARIANCE]), _seen(at)
        found = estimated(seen, told, self.floor).mixed(told, self.chosen(seen, told))
        return {MEANS: found.means, COVARIANCE: found.covariance}

    def chosen(self, seen: ClientFeatures, told: Gaussians) -> Tensor:
        """β of the means and of the covariance [2, G]. Of equally good values the smallest, which relies most on the
        global estimate."""
        grid = torch.linspace(0, 1, self.steps + 1, device=seen.features.device)
        pairs = torch.stack([grid, grid], dim=1) if self.betas == "one" else torch.cartesian_prod(grid, grid)
        counts = seen.one_hot(told.means.shape[1]).sum(dim=1)
        fold = torch.arange(seen.labels.shape[1], device=seen.labels.device) % self.folds
        total = torch.zeros(len(pairs), len(seen.labels), device=seen.features.device)
        for number in range(self.folds):
            out = (fold == number).to(seen.real.dtype)
            own = estimated(seen.only(1 - out), told, self.floor)
            total += self._losses(seen.only(out), own, told, counts, grid)
        return pairs[total.nan_to_num(torch.inf).argmin(dim=0)].T

    def _losses(self, seen: ClientFeatures, own: Gaussians, told: Gaussians, counts: Tensor, grid: Tensor) -> Tensor:
        """The losses [P, G] of all P pairs (β of the means, β of the covariance). Each covariance is inverted only
        once, for all β of the means."""
        ends = (told.means.double(), own.means.double())
        found = {}
        for row, wide in enumerate(grid):
            mixed = own.mixed(told, wide.expand(2, len(counts))).covariance
            far, near = (_times_inverse(mixed, end, self.ridge) for end in ends)
            for column, beta in enumerate(grid) if self.betas == "two" else ((row, wide),):
                weight, means = (torch.lerp(a, b, beta.double()) for a, b in ((far, near), ends))
                found[column, row] = loss_of(seen, _head(weight, means, counts, told.means))
        return torch.stack([found[pair] for pair in sorted(found)])

    def shows(self, held: ServerView) -> Tensors:
        """The generic head: that of the global Gaussians, with equal class shares."""
        found = Gaussians(held.shared[MEANS][None], held.shared[COVARIANCE][None])
        head = head_of(found, torch.ones_like(found.means[..., 0]), self.ridge)
        return {name: tensor[0] for name, tensor in head.items()}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        mean = received.combined[MEANS]
        return replace(held, shared={MEANS: mean, COVARIANCE: received.combined[COVARIANCE], KNOWN: mean.new_ones(())})


def _seen(at: VisitEnd) -> ClientFeatures:
    """The features of all samples that the clients train on, in random order: their places decide the folds."""
    parts = [
        (said.features, batch.labels, one_hot_labels(batch, at.classes).sum(dim=-1))
        for batch, said in at.look(at.learned.tensors)
    ]
    return ClientFeatures(*(torch.cat(each, dim=1) for each in zip(*parts, strict=True)))
