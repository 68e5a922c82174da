"""Server rules: the weighted mean of what the participants sent becomes the next shared part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torso.nets import Tensors
from torso.registry import Registry


class ServerRule(Protocol):
    def step(self, state: Tensors, old: Tensors, mean: Tensors) -> tuple[Tensors, Tensors]:
        """(own state, shared part before the round, mean of the clients') → (own state, shared part after it)."""
        ...


servers: Registry[type[ServerRule]] = Registry("method.server")


@servers.register("mean")
@dataclass(frozen=True)
class Mean:
    """The weighted mean of the participants' models (spec 1.2, step 5)."""

    def step(self, state: Tensors, old: Tensors, mean: Tensors) -> tuple[Tensors, Tensors]:
        return state, mean
