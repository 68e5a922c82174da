"""Small methods of one's own: a composition, and a new choice on one axis. See docs/extending.md."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import torso
from torso.kinds import Beta, Positive
from torso.learn.drift import Proximal
from torso.methods import Method, methods
from torso.methods.catalogue import fedbabu, fedper
from torso.nets import Tensors
from torso.nets.heads import Normalized
from torso.server.rules import Moved, ServerRule, servers


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

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> Moved:
        delta = {n: mean[n] - t for n, t in old.items()}
        m = {n: self.beta * state.get(n, torch.zeros_like(d)) + d for n, d in delta.items()}
        return Moved(m, {n: t + self.lr * (delta[n] + self.beta * m[n]) for n, t in old.items()})


@methods.register("fedbabu-nesterov")
def fedbabu_nesterov() -> Method:
    """FedBABU with Nesterov's momentum on the server."""
    return fedbabu.but(server=Nesterov())


if __name__ == "__main__":
    small = {"data": {"clients": 20}, "train": {"rounds": 5}}
    for method in ("fedper-fn-prox", "fedbabu-nesterov", fedper.but(drift=Proximal(1.0))):
        result = torso.run(torso.Config(method=method, **small))
        print(result.method, result.accuracy["personalized"].mean)
