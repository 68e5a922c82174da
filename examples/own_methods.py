"""Small custom methods: a composition, new choices on an axis, an attack. See docs/extending.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import torso
from torso.engine import Workspace
from torso.kinds import Beta, Positive
from torso.learn.attacks import Attack, HonestUpload, attacks
from torso.learn.drift import Proximal
from torso.methods import Exchange, Method, Start, methods, starts
from torso.methods.catalogue import fedbabu, fedper
from torso.nets import Tensors
from torso.nets.heads import Normalized
from torso.server.rules import RuleStep, ServerRule, servers


@methods.register("fedper-fn-prox")
def fedper_fn_prox() -> Method:
    """FedPer with features of length one, its body held near the received one."""
    return fedper.but(head=Normalized(), drift=Proximal(0.1))


@servers.register("nesterov")
@dataclass(frozen=True)
class Nesterov(ServerRule):
    """m ← β m + Δ; θ ← θ + η (Δ + β m)."""

    lr: Positive = 1.0
    beta: Beta = 0.9

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        delta = {n: mean[n] - t for n, t in old.items()}
        m = {n: self.beta * state.get(n, torch.zeros_like(d)) + d for n, d in delta.items()}
        return RuleStep(m, {n: t + self.lr * (delta[n] + self.beta * m[n]) for n, t in old.items()})


@methods.register("fedbabu-nesterov")
def fedbabu_nesterov() -> Method:
    """FedBABU with Nesterov's momentum on the server."""
    return fedbabu.but(server=Nesterov())


def class_counts(workspace: Workspace, clients: Sequence[int]) -> Tensors:
    """How many training samples of each class each client has [G, C]."""
    return {"counts": workspace.train_deck(clients).class_counts(workspace.context.classes).float()}


@starts.register("class-shares")
@dataclass(frozen=True)
class ClassShares(Start):
    """The head's bias begins at the log of all clients' class proportions, with `extra` samples of each class."""

    extra: Positive = 1.0

    def before_first_round(self, exchange: Exchange) -> Tensors:
        counts = exchange.ask(class_counts)["counts"] + self.extra
        return {"head.bias": (counts / counts.sum()).log()}


@attacks.register("boost")
@dataclass(frozen=True)
class Boost(Attack):
    """The honest update, `factor` times as long."""

    factor: Positive = 10.0

    def upload(self, honest: HonestUpload) -> Tensors:
        return {n: self.factor * change for n, change in honest.change.items()}


if __name__ == "__main__":
    small = {"data": {"clients": 20}, "train": {"rounds": 5}}
    for method in ("fedper-fn-prox", "fedbabu-nesterov", fedper.but(drift=Proximal(1.0))):
        result = torso.run(torso.Config(method=method, **small))
        print(result.method, result.accuracy["personalized"].mean)
