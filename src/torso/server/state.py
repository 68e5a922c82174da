"""The server's state at the end of a round, and the cost so far. The clients' states are in personal/store.py."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from torso.many import ClientSet
from torso.nets import Tensors


@dataclass(frozen=True)
class Cost:
    """The cost of a run so far."""

    bytes_up: int = 0  # sent by clients (spec 14.1)
    bytes_down: int = 0  # sent to clients (spec 14.1)
    forward_passes: int = 0  # of one sample (spec 14.2)
    flops: int = 0  # floating-point operations of these passes
    hours: float = 0.0  # simulated time, if clients have speeds

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.forward_passes + other.forward_passes,
            self.flops + other.flops,
            self.hours + other.hours,
        )

    def as_json(self) -> dict[str, Any]:
        """The cost as JSON, without `hours` if time is not simulated."""
        return {key: value for key, value in vars(self).items() if key != "hours" or value}


@dataclass(frozen=True)
class ServerState:
    """All that the server keeps from round to round."""

    model: Tensors  # [*]: the shared part as it is broadcast next; all other tensors as at the start of the run
    round: int = 0
    shown: Tensors = field(default_factory=dict)  # [*]: tensors that accuracy is reported on, if not those of `model`
    rule: Tensors = field(default_factory=dict)  # state of the server rule
    drift: Tensors = field(default_factory=dict)  # mean over all clients of the memories of their drift corrections
    origin: Tensors = field(default_factory=dict)  # the initial model, if the clients' own models begin at it
    privacy: Tensors = field(default_factory=dict)  # state of the privacy mechanism: its clipping length, if it adapts
    uploads: Mapping[int, Tensors] = field(default_factory=dict)  # each client's last upload, if the rule keeps them
    statistics: Tensors = field(default_factory=dict)  # what `Statistics.combine` keeps for all clients …
    of_clients: Mapping[int, Tensors] = field(default_factory=dict)  # … and for each client
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
        """The first state of another method, which continues from the model alone; rounds and costs are added up."""
        return ServerState({**self.model, **self.shown}, self.round, met=self.met, cost=self.cost)


def bytes_of(tensors: Tensors) -> int:
    """The size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
