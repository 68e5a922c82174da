"""Which parts learn, in which order, for how long: a phase as the user says it, and as the loop needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.kinds import CountOrZero, NotNegative
from torso.learn.stacked import Rate
from torso.nets import Network, learnable, part_names

_LARGEST = 3e38  # of float32: a rate beyond it diverges as one below it does, but torch would refuse it


@dataclass(frozen=True)
class Phase:
    """Train `part` at `lr` times the rate for `epochs` (0: as many as the run, or the personalisation, has)."""

    part: str = "all"
    epochs: CountOrZero = 0
    lr: NotNegative = 1.0


def phases(what: str | Phase | Sequence[Phase]) -> tuple[Phase, ...]:
    """`"body"` is short for one phase that trains the body."""
    if isinstance(what, str):
        return (Phase(what),)
    return (what,) if isinstance(what, Phase) else tuple(what)


@dataclass(frozen=True)
class LocalPhase:
    """A phase worked out for one network: the rate of every tensor that learns, and everything that may move."""

    epochs: int
    rates: Mapping[str, Rate]  # learnable tensors only; a rate is never 0 (spec 1.3: frozen means excluded)
    moving: frozenset[str]  # those and the running statistics of the same layers; nothing that its owner froze

    def differs_in_rates(self, other: LocalPhase) -> bool:
        """Whether nothing else than the rates' values tells them apart."""
        mine, its = ((phase.epochs, phase.rates.keys(), phase.moving) for phase in (self, other))
        return mine == its

    def of_places(self, places: Tensor) -> LocalPhase:
        """That of the clients at these places of the stack."""
        return replace(self, rates={n: r[places] if isinstance(r, Tensor) else r for n, r in self.rates.items()})


def beside(local_phases: Sequence[LocalPhase], clients: Sequence[int], device: torch.device) -> LocalPhase:
    """One phase for the clients of several runs, so many of each, that differ in rates."""
    made: dict[tuple[Rate, ...], Rate] = {}
    rates: dict[str, Rate] = {}
    for name in local_phases[0].rates:
        each = tuple(phase.rates[name] for phase in local_phases)
        if each not in made:
            every = [float(rate) for rate, count in zip(each, clients, strict=True) for _ in range(count)]
            made[each] = each[0] if len(set(each)) == 1 else on_device(device, every)
        rates[name] = made[each]
    return replace(local_phases[0], rates=rates)


def local_phases(
    net: Network, plan: Sequence[Phase], epochs: int, lr: float, head_factor: float = 1.0
) -> tuple[LocalPhase, ...]:
    """Work phases out. `head_factor` is the head's rate over the body's (spec 3.2); at 0 the head is frozen."""
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


def own_head_learns(plan: Sequence[LocalPhase], net: Network) -> tuple[LocalPhase, ...]:
    """The same phases, in which a personal head that a network makes learns for itself, at the rate of that network,
    whose weights stay (spec 9.7). The client's tensors must have `net.made_head`."""
    makes = frozenset(part_names(net, "personal"))

    def instead(phase: LocalPhase) -> LocalPhase:
        swapped = {net.made_head if n in makes else n: rate for n, rate in phase.rates.items()}
        return replace(phase, rates=swapped, moving=phase.moving - makes | swapped.keys())

    return tuple(map(instead, plan)) if net.made_head else tuple(plan)


def moved_by(plan: Sequence[LocalPhase]) -> frozenset[str]:
    return frozenset().union(*(phase.moving for phase in plan))
