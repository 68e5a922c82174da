"""A method in a setting, and the order in which methods are run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torso.papers.board.combinations import Combination
from torso.papers.board.definition import Point
from torso.papers.board.trials import BoardMethod, BoardPlan, Trial
from torso.parallel.packs import alike


@dataclass
class Contestant:
    """An entry in a setting, with the runs that choose its rates and, once chosen, those that are judged."""

    plan: BoardPlan
    setting: str
    entry: BoardMethod
    combination: Combination | None = None  # of the search
    tuning: list[Trial] = field(init=False)
    finals: dict[int, Trial] = field(default_factory=dict)  # by seed
    facts: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)  # of the judged runs, by their seeds

    def __post_init__(self) -> None:
        self.tuning = self.plan.tuning(self.setting, self.entry)

    def final(self, point: Point, seed: int) -> Trial:
        if seed not in self.finals:
            self.finals[seed] = self.plan.final(self.setting, self.entry, point, seed)
        return self.finals[seed]

    def widen(self, best: Point) -> list[Trial]:
        """Further runs that choose: the neighbours of the best so far."""
        points = self.plan.board.untried(best, [trial.point for trial in self.tuning])
        more = self.plan.tuning(self.setting, self.entry, points)
        self.tuning += more
        return more

    def stand_ins(self, seeds: int) -> list[Trial]:
        """As many runs as will be judged, before anybody knows their rates: for estimates."""
        point = self.tuning[0].point
        return [self.plan.final(self.setting, self.entry, point, seed) for seed in range(seeds)]


def in_turn(contestants: Sequence[Contestant], at_once: int) -> list[list[Contestant]]:
    """Families, so many together: what is finished when somebody stops is whole."""
    families = _families(contestants)
    starts = range(0, len(families), at_once)
    return [list(chain.from_iterable(families[start : start + at_once])) for start in starts]


def _families(contestants: Sequence[Contestant]) -> list[list[Contestant]]:
    """Methods whose clients learn alike share a device's steps, whatever their setting; others wait."""
    setting, kin = contestants[0].setting, dict[str, str]()
    groups: dict[str, list[Contestant]] = {}
    for one in contestants:
        name = one.entry.name
        if name not in kin:
            kin[name] = alike(one.plan.config(setting, one.entry, {}))
        groups.setdefault(kin[name], []).append(one)
    return list(groups.values())
