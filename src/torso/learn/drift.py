"""What holds a client near the others? A correction of the gradient, applied before momentum.

G clients, * a parameter's shape. A correction sees only the parameters that travel and learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torso.kinds import NotNegative
from torso.nets import Tensors
from torso.registry import Registry


@dataclass(frozen=True)
class Local:
    """Where G clients stand in their visit: `start` [*] as received, `params` [G, *] now."""

    start: Tensors
    params: Tensors


class Drift(Protocol):
    def gradient(self, grads: Tensors, at: Local) -> Tensors:
        """Corrected gradients [G, *], in new tensors or the same ones."""
        ...


drifts: Registry[type[Drift]] = Registry("method.drift")


@drifts.register("none")
@dataclass(frozen=True)
class NoDrift:
    """Nothing: the client follows its own loss."""

    def gradient(self, grads: Tensors, at: Local) -> Tensors:
        return grads


@drifts.register("proximal")
@dataclass(frozen=True)
class Proximal:
    """(μ/2)·‖θ − θ_G‖² is added to the loss, θ_G the model received (FedProx, spec 3.5)."""

    mu: NotNegative = 0.01

    def gradient(self, grads: Tensors, at: Local) -> Tensors:
        return {n: g + self.mu * (at.params[n] - at.start[n]) for n, g in grads.items()}
