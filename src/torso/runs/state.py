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
    """`model` [*]: the shared part as it is broadcast next, everything else as it was at the start.

    What clients have is there only for those that have trained (spec 1.5): `private`, the parts of the model that a
    client keeps; `memory`, what its drift correction remembers.
    """

    model: Tensors
    round: int = 0
    shown: Tensors = field(default_factory=dict)  # what accuracy is reported on, where it is not what is broadcast
    rule: Tensors = field(default_factory=dict)  # state of the server rule
    drift: Tensors = field(default_factory=dict)  # mean over all clients of what their corrections remember
    private: Mapping[int, Tensors] = field(default_factory=dict)
    memory: Mapping[int, Tensors] = field(default_factory=dict)
    met: frozenset[int] = frozenset()  # clients that have taken part
    cost: Cost = Cost()

    def at_new_stage(self) -> State:
        """Another method goes on from the model alone; rounds and costs are counted on."""
        return State({**self.model, **self.shown}, self.round, cost=self.cost)


def bytes_of(model: Tensors, names: Iterable[str]) -> int:
    return sum(model[name].numel() * model[name].element_size() for name in names)
