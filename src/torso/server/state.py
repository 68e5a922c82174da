"""What the server holds at the end of a round. What clients hold is theirs: personal/store.py."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from torso.many import ClientSet
from torso.nets import Tensors


@dataclass(frozen=True)
class Cost:
    """What has been spent so far: bytes that travelled (spec 14.1), forward passes of one sample (spec 14.2), the
    floating-point operations of the same passes, and simulated hours where clients have speeds."""

    bytes_up: int = 0
    bytes_down: int = 0
    forward_passes: int = 0
    flops: int = 0
    hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.forward_passes + other.forward_passes,
            self.flops + other.flops,
            self.hours + other.hours,
        )

    def as_json(self) -> dict[str, Any]:
        """Without hours where time is not simulated."""
        return {key: value for key, value in vars(self).items() if key != "hours" or value}


@dataclass(frozen=True)
class ServerState:
    """`model` [*]: the shared part as it is broadcast next, everything else as it was at the start."""

    model: Tensors
    round: int = 0
    shown: Tensors = field(default_factory=dict)  # what accuracy is reported on, where it is not what is broadcast
    rule: Tensors = field(default_factory=dict)  # state of the server rule
    drift: Tensors = field(default_factory=dict)  # mean over all clients of what their corrections remember
    origin: Tensors = field(default_factory=dict)  # the model of the first round, where own models begin at it
    privacy: Tensors = field(default_factory=dict)  # what the mechanism of privacy goes on with: its clip, if it adapts
    uploads: Mapping[int, Tensors] = field(default_factory=dict)  # everybody's last one, where the rule keeps them
    statistics: Tensors = field(default_factory=dict)  # what it holds of statistics that clients sent, for all …
    of_clients: Mapping[int, Tensors] = field(default_factory=dict)  # … and by client
    met: Set[int] = ClientSet()  # clients that have taken part
    cost: Cost = Cost()

    @property
    def reported(self) -> ServerState:
        """The state that accuracy is measured on."""
        return replace(self, model={**self.model, **self.shown}, shown={})

    @property
    def light(self) -> ServerState:
        """The part of the state that work for clients may need."""
        return ServerState(self.model, self.round, origin=self.origin)

    def at_new_stage(self) -> ServerState:
        """Another method goes on from the model alone; rounds and costs are counted on."""
        return ServerState({**self.model, **self.shown}, self.round, met=self.met, cost=self.cost)


def bytes_of(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
