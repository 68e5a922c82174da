"""Class means of features as statistics: the global ones for all clients, and a mix of heads for each client.

K participants, C classes, d features, N_kc samples of class c on client k, μ_kc their mean feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torso.errors import RequestError
from torso.learn.outputs import one_hot_labels
from torso.nets import Network, Tensors
from torso.server.statistics import (
    Declared,
    RoundStatistics,
    ServerView,
    Statistic,
    Statistics,
    VisitEnd,
    blended,
    statistics,
)

MEANS, KNOWN = "means", "known"


@statistics.register("prototypes")
@dataclass(frozen=True)
class Prototypes(Statistics):
    """Global class means: clients send the sums of their features by class and the class counts; the server sends back
    the means over all samples of the round (FedProto, spec 19.12).

    `weighting = "clients"`: each client sends its class means, and all clients have the same weight, as in the authors'
    code. A class that no participant has keeps its last mean."""

    weighting: Literal["samples", "clients"] = "samples"
    passes: ClassVar[float] = 1.0

    def declares(self, net: Network, classes: int) -> Declared:
        by_samples = self.weighting == "samples"
        total = "class sums" if by_samples else "class means"
        count = "class counts" if by_samples else "its classes"
        return {
            "total": Statistic((classes, net.body.features), total, counts=True, over_samples=by_samples),
            "count": Statistic((classes,), count, counts=True, numbers="count"),
        }

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        return {MEANS: torch.zeros(classes, net.body.features), KNOWN: torch.zeros(classes)}

    def of_clients(self, at: VisitEnd) -> Tensors:
        total, count = at.class_sums(at.learned.tensors)
        if self.weighting == "clients":
            means = total / count.clamp(min=1).unsqueeze(-1)
            return {"total": means, "count": (count > 0).to(count.dtype)}
        return {"total": total, "count": count}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        total, count = received.combined["total"], received.combined["count"]
        there = count > 0
        means = torch.where(there.unsqueeze(-1), total / count.clamp(min=1).unsqueeze(-1), held.shared[MEANS])
        known = torch.maximum(held.shared[KNOWN], there.to(means.dtype))
        return replace(held, shared={MEANS: means, KNOWN: known})


@statistics.register("mixed-heads")
@dataclass(frozen=True)
class MixedHeads(Prototypes):
    """Global class means as in `prototypes`, and a mix of heads for each participant: Σ_j α_j head_j. α on the simplex
    minimises a bound on the client's risk, αᵀ(diag(v) + [⟨h_i − h_j, h_i − h_l⟩]_jl)α (FedPAC, spec 19.13).

    With p_c = N_kc/n_k: h_k = (p_c μ_kc)_c and v_k = (Σ_c p_c E‖f‖² − p_c²‖μ_kc‖²) / n_k, both with the received
    body."""

    mixes: ClassVar[bool] = True
    passes: ClassVar[float] = 2.0

    def check(self, net: Network, share: frozenset[str]) -> None:
        if not net.parts["head"] or share.intersection(net.parts["head"]):
            raise RequestError(
                "method.statistics = 'mixed-heads' mixes heads that clients keep, and the head travels as a part of "
                "the shared model. Accepted: method.share = 'body'"
            )

    def declares(self, net: Network, classes: int) -> Declared:
        shapes = net.state_dict()
        heads = {n: Statistic(tuple(shapes[n].shape), "its head", "each") for n in _parameters(net)}
        return {
            **super().declares(net, classes),
            **heads,
            "spread": Statistic((), "the spread of its features", "each", numbers="not negative"),
            "shares": Statistic((classes, net.body.features), "class means times class shares", "each", counts=True),
        }

    def of_clients(self, at: VisitEnd) -> Tensors:
        heads = {n: at.learned.tensors[n] for n in _parameters(at.task.context.net)}
        spread, shares = moments(at)
        return {**super().of_clients(at), **heads, "spread": spread, "shares": shares}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        rows = [{n: t for n, t in received.each[k].items() if n not in ("spread", "shares")} for k in received.clients]
        alphas = mixing_weights(received.stacked("spread"), received.stacked("shares"))
        like = next(iter(rows[0].values()))
        mixed = {k: blended(alpha.to(like), rows) for k, alpha in zip(received.clients, alphas, strict=True)}
        return replace(super().combine(held, received), own={**held.own, **mixed})

    def to_one(self, held: ServerView, client: int) -> Tensors:
        heads = (name for name in held.model if name.startswith("head.") and held.model[name].is_floating_point())
        return held.own.get(client) or {name: held.model[name] for name in heads}


def _parameters(net: Network) -> list[str]:
    """The tensors of the head, without counters."""
    return [name for name in net.parts["head"] if net.state_dict()[name].is_floating_point()]


@torch.no_grad()
def moments(at: VisitEnd) -> tuple[Tensor, Tensor]:
    """FedPAC's v [G] and h [G, C, d], computed with the model at the start of the visit."""
    context, clients = at.task.context, len(at.task.deck.clients)
    total = torch.zeros(clients, at.classes, context.net.body.features, device=at.task.deck.index.device)
    size, squares = total.new_zeros(clients), total.new_zeros(clients)
    for batch, said in at.look(at.start):
        member = one_hot_labels(batch, at.classes, said.features.dtype)  # [G, B, C]
        total = total + member.transpose(1, 2) @ said.features
        size = size + member.sum(dim=(1, 2))
        squares = squares + (member.sum(dim=-1) * said.features.square().sum(dim=-1)).sum(dim=1)
    shares = total / size.view(-1, 1, 1)  # p_c μ_c
    spread = (squares / size - shares.square().sum(dim=(1, 2))) / size  # Σ_c p_c E‖f‖² is the mean over all samples
    return spread.clamp(min=0), shares


def mixing_weights(spread: Tensor, shares: Tensor) -> Tensor:
    """The weights α [K, K], a row for each client, in float64 on the host. Each row is a quadratic programme in K
    variables."""
    flat = shares.flatten(1).double().cpu()
    products = flat @ flat.T
    found = []
    for client in range(len(flat)):
        mine = products[client]
        bias = products - mine.unsqueeze(0) - mine.unsqueeze(1) + mine[client]
        found.append(least_on_simplex(bias + torch.diag(spread.double().cpu())))
    return torch.stack(found)


def least_on_simplex(matrix: Tensor) -> Tensor:
    """argmin αᵀPα over α ≥ 0, Σα = 1 [K], for P [K, K] symmetric and positive semi-definite.

    α is u/Σu, where u ≥ 0 minimises ½uᵀPu − Σu: both problems have the same conditions of optimality up to scale. u is
    found exactly by an active-set method (Lawson and Hanson): the variable with the lowest gradient enters, and a
    variable leaves when it reaches 0."""
    count = len(matrix)
    size = matrix.diagonal().mean().clamp(min=1e-300)
    scaled = matrix / size + 1e-9 * torch.eye(count, dtype=matrix.dtype)
    u, free = torch.zeros(count, dtype=matrix.dtype), torch.zeros(count, dtype=torch.bool)
    for _ in range(3 * count):
        slope = scaled @ u - 1
        slope[free] = 0
        enters = int(slope.argmin())
        if slope[enters] > -1e-10:
            break
        free[enters] = True
        while True:
            wanted = torch.zeros_like(u)
            wanted[free] = torch.linalg.solve(scaled[free][:, free], torch.ones(int(free.sum()), dtype=u.dtype))
            falls = free & (wanted <= 0)
            if not bool(falls.any()):
                u = wanted
                break
            step = (u[falls] / (u[falls] - wanted[falls])).min()
            u = u + step * (wanted - u)
            free &= u > 1e-15
            u[~free] = 0
    return u / u.sum()
