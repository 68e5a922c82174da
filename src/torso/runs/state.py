"""All that a run is at the end of a round. A round is a function of (config, state, round number)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torso.nets import Tensors


@dataclass(frozen=True)
class Cost:
    """What has been spent so far: bytes that travelled (spec 14.1), forward passes of one sample (spec 14.2)."""

    bytes_up: int = 0
    bytes_down: int = 0
    forward_passes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.forward_passes + other.forward_passes,
        )


@dataclass(frozen=True)
class State:
    """`model` [*]: the shared part as the server has it, everything else as it was at the start.

    `private`: what a client keeps, present only for clients that have trained (spec 1.5); `met`: those that took part.
    """

    model: Tensors
    round: int = 0
    server: Tensors = field(default_factory=dict)
    private: Mapping[int, Tensors] = field(default_factory=dict)
    met: frozenset[int] = frozenset()
    cost: Cost = Cost()


def bytes_of(model: Tensors, names: Iterable[str]) -> int:
    return sum(model[name].numel() * model[name].element_size() for name in names)
