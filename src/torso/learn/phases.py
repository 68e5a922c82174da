"""Phases of local training: which parts train, in which order, for how long.

`Phase` is the user's form; `LocalPhase` is the form that the local loop needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.kinds import CountOrZero, NotNegative
from torso.learn.stacked import Rate
from torso.nets import Network, learnable, part_names

_LARGEST = 3e38  # largest rate, near the limit of float32. torch refuses a larger one; this one diverges just the same


@dataclass(frozen=True)
class Phase:
    """A phase of local training: train `part` at `lr` times the learning rate for `epochs` epochs (0: as many as the
    run, or the personalisation, has)."""

    part: str = "all"
    epochs: CountOrZero = 0
    lr: NotNegative = 1.0


def phases(what: str | Phase | Sequence[Phase]) -> tuple[Phase, ...]:
    """The phases that a user's value stands for: `"body"` is short for one phase that trains the body."""
    if isinstance(what, str):
        return (Phase(what),)
    return (what,) if isinstance(what, Phase) else tuple(what)


@dataclass(frozen=True)
class LocalPhase:
    """A phase for one network: the learning rate of every tensor that trains, and all tensors that may change."""

    epochs: int
    rates: Mapping[str, Rate]  # learnable tensors only; a rate is never 0 (spec 1.3: frozen means excluded)
    moving: frozenset[str]  # these tensors and the running statistics of their layers; none that the user froze

    def differs_only_in_rates(self, other: LocalPhase) -> bool:
        """Whether the two phases are equal but for the values of their rates."""
        same_epochs = self.epochs == other.epochs
        return same_epochs and self.rates.keys() == other.rates.keys() and self.moving == other.moving

    def of_places(self, places: Tensor) -> LocalPhase:
        """The phase of the clients at these places of the stack."""
        return replace(self, rates={n: r[places] if isinstance(r, Tensor) else r for n, r in self.rates.items()})


def stacked_phase(local_phases: Sequence[LocalPhase], clients: Sequence[int], device: torch.device) -> LocalPhase:
    """One phase for a stack of clients of several runs, whose phases differ only in rates. `clients`: the number of
    clients of each run. A rate that differs becomes a tensor [G]."""
    made: dict[tuple[Rate, ...], Rate] = {}  # tensors with the same rates share one tensor
    rates: dict[str, Rate] = {}
    for name in local_phases[0].rates:
        of_runs = tuple(phase.rates[name] for phase in local_phases)
        if of_runs not in made:
            of_clients = [float(rate) for rate, count in zip(of_runs, clients, strict=True) for _ in range(count)]
            made[of_runs] = of_runs[0] if len(set(of_runs)) == 1 else on_device(device, of_clients)
        rates[name] = made[of_runs]
    return replace(local_phases[0], rates=rates)


def local_phases(
    net: Network, plan: Sequence[Phase], epochs: int, lr: float, head_factor: float = 1.0
) -> tuple[LocalPhase, ...]:
    """The phases of a plan for a network; a phase in which nothing trains is left out. `epochs` and `lr` are the
    defaults of the run. `head_factor`: the head's learning rate over the body's (spec 3.2); at 0 the head is frozen."""
    head = frozenset(part_names(net, "head"))
    plans = []
    for phase in plan:
        scale = {n: head_factor if n in head else 1.0 for n in part_names(net, phase.part)}
        rate = {n: min(lr * phase.lr * factor, _LARGEST) for n, factor in scale.items()}
        moving = frozenset(n for n, r in rate.items() if r > 0) - net.frozen
        params = learnable(net, tuple(n for n in rate if n in moving))
        if params:
            plans.append(LocalPhase(phase.epochs or epochs, {n: rate[n] for n in params}, moving))
    return tuple(plans)


def with_trained_head(plan: Sequence[LocalPhase], net: Network) -> tuple[LocalPhase, ...]:
    """The plan for a network that generates the client's personal head: the head itself trains, at the learning rate of
    the network that generates it, and this network's weights do not change (spec 9.7). The client's tensors must have
    `net.generated_head`. Other networks: the same plan."""
    generator = frozenset(part_names(net, "personal"))

    def with_head(phase: LocalPhase) -> LocalPhase:
        rates = {net.generated_head if n in generator else n: rate for n, rate in phase.rates.items()}
        return replace(phase, rates=rates, moving=frozenset(phase.moving - generator | rates.keys()))

    return tuple(map(with_head, plan)) if net.generated_head else tuple(plan)


def moved_by(plan: Sequence[LocalPhase]) -> frozenset[str]:
    """The names of all tensors that a phase of the plan may change."""
    return frozenset().union(*(phase.moving for phase in plan))
