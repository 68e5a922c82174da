"""Which parts learn, in which order, for how long: a phase as the user says it, a lesson as the loop needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torso.kinds import CountOrZero, NotNegative
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
class Lesson:
    """A phase worked out for one network: the rate of every tensor that learns, and everything that may move."""

    epochs: int
    rates: Mapping[str, float]  # learnable tensors only; a rate is never 0 (spec 1.3: frozen means excluded)
    moving: frozenset[str]  # those and the running statistics of the same layers


def lessons(
    net: Network, plan: Sequence[Phase], epochs: int, lr: float, head_factor: float = 1.0
) -> tuple[Lesson, ...]:
    """Work phases out. `head_factor` is the head's rate over the body's (spec 3.2); at 0 the head is frozen."""
    head = frozenset(part_names(net, "head"))
    plans = []
    for phase in plan:
        scale = {n: head_factor if n in head else 1.0 for n in part_names(net, phase.part)}
        rate = {n: min(lr * phase.lr * factor, _LARGEST) for n, factor in scale.items()}
        moving = frozenset(n for n, r in rate.items() if r > 0)
        params = learnable(net, tuple(n for n in rate if n in moving))
        if params:
            plans.append(Lesson(phase.epochs or epochs, {n: rate[n] for n in params}, moving))
    return tuple(plans)


def moved_by(plan: Sequence[Lesson]) -> frozenset[str]:
    return frozenset().union(*(lesson.moving for lesson in plan))
