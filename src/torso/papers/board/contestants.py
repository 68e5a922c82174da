"""A method in a setting, and the order in which methods are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torso.papers.board.combinations import Combination
from torso.papers.board.definition import Point
from torso.papers.board.trials import BoardMethod, BoardPlan, Trial
from torso.parallel.packs import alike


@dataclass
class Contestant:
    """A method in a setting: its tuning runs and, once its rates are chosen, its final runs."""

    plan: BoardPlan
    setting: str
    entry: BoardMethod
    combination: Combination | None = None  # where the search made it
    tuning: list[Trial] = field(init=False)
    finals: dict[int, Trial] = field(default_factory=dict)  # by seed
    facts: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)  # of the final runs, by their seeds
    published: Mapping[str, Any] | None = None  # its row, where the board goes on from the published one

    def __post_init__(self) -> None:
        self.tuning = self.plan.tuning(self.setting, self.entry)

    def final(self, point: Point, seed: int) -> Trial:
        if seed not in self.finals:
            self.finals[seed] = self.plan.final(self.setting, self.entry, point, seed)
        return self.finals[seed]

    def is_judged(self, point: Point, seeds: int) -> bool:
        """Whether the published row has the final runs of this point."""
        return (
            self.published is not None and self.published["chosen"] == point and len(self.published["seeds"]) >= seeds
        )

    def widen(self, best: Point) -> list[Trial]:
        """Further tuning runs: the untried neighbours of the best point so far."""
        points = self.plan.board.untried(best, [trial.point for trial in self.tuning])
        more = self.plan.tuning(self.setting, self.entry, points)
        self.tuning += more
        return more

    def stand_ins(self, seeds: int) -> list[Trial]:
        """As many final runs as there will be, with any rates: for the estimate of time."""
        point = self.tuning[0].point
        return [self.plan.final(self.setting, self.entry, point, seed) for seed in range(seeds)]


def in_turn(contestants: Sequence[Contestant], at_once: int) -> list[list[Contestant]]:
    """Groups of families that are run one after the other: after a stop, whole families are finished."""
    families = _families(contestants)
    starts = range(0, len(families), at_once)
    return [list(chain.from_iterable(families[start : start + at_once])) for start in starts]


def _families(contestants: Sequence[Contestant]) -> list[list[Contestant]]:
    """Contestants by family: methods whose clients train alike can share the steps of a device, in all settings."""
    setting, kin = contestants[0].setting, dict[str, str]()
    groups: dict[str, list[Contestant]] = {}
    for one in contestants:
        name = one.entry.name
        if name not in kin:
            kin[name] = alike(one.plan.config(setting, one.entry, {}))
        groups.setdefault(kin[name], []).append(one)
    return list(groups.values())
