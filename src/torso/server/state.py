"""All that a run is at the end of a round. A round is a function of (config, state, round number)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torso.nets import Tensors
from torso.personal.models import models_of


@dataclass(frozen=True)
class Cost:
    """What has been spent so far: bytes that travelled (spec 14.1), forward passes of one sample (spec 14.2), and the
    floating-point operations of the same passes."""

    bytes_up: int = 0
    bytes_down: int = 0
    forward_passes: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.forward_passes + other.forward_passes,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class State:
    """`model` [*]: the shared part as it is broadcast next, everything else as it was at the start.

    What clients have is there only for those that have trained (spec 1.5): `private`, the parts of the model that a
    client keeps; `memory`, what its drift correction remembers; `own`, a model of its own that never travels; `notes`,
    what its step, or its way to a model of its own, remembers.
    """

    model: Tensors
    round: int = 0
    shown: Tensors = field(default_factory=dict)  # what accuracy is reported on, where it is not what is broadcast
    rule: Tensors = field(default_factory=dict)  # state of the server rule
    drift: Tensors = field(default_factory=dict)  # mean over all clients of what their corrections remember
    private: Mapping[int, Tensors] = field(default_factory=dict)
    memory: Mapping[int, Tensors] = field(default_factory=dict)
    own: Mapping[int, Tensors] = field(default_factory=dict)
    notes: Mapping[int, Tensors] = field(default_factory=dict)
    origin: Tensors = field(default_factory=dict)  # the model of the first round, where own models begin at it
    met: frozenset[int] = frozenset()  # clients that have taken part
    cost: Cost = Cost()

    @property
    def reported(self) -> State:
        """The state that accuracy is measured on."""
        return replace(self, model={**self.model, **self.shown}, shown={})

    def own_models(self, clients: Sequence[int]) -> Tensors:
        """What the visits of G clients left them [G, *]: tensors of their own, the first or the server's elsewhere."""
        first = {**self.model, **self.origin}
        names = self.origin.keys() | {name for k in clients for name in self.own.get(k, {})}
        return models_of({name: first[name] for name in sorted(names)}, self.own, clients)

    def for_clients(self, clients: Sequence[int], lent: Sequence[int] = ()) -> State:
        """What some clients need of it: nobody else's tensors, but for the models that they are sent besides."""
        mine = dict.fromkeys(clients)

        def some(held: Mapping[int, Tensors], who: Iterable[int]) -> dict[int, Tensors]:
            return {k: held[k] for k in who if k in held}

        return replace(
            self,
            shown={},
            rule={},
            met=frozenset(),
            private=some(self.private, mine | dict.fromkeys(lent)),
            memory=some(self.memory, mine),
            own=some(self.own, mine),
            notes=some(self.notes, mine),
        )

    def at_new_stage(self) -> State:
        """Another method goes on from the model alone; rounds and costs are counted on."""
        return State({**self.model, **self.shown}, self.round, met=self.met, cost=self.cost)


def bytes_of(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
