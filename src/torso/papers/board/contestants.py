"""Contestants of the leaderboard (a method in a setting), and the order in which they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from torso.papers.board.combinations import Combination
from torso.papers.board.definition import Point
from torso.papers.board.trials import BoardMethod, BoardPlan, Trial
from torso.papers.experiments.provenance import changed_as_json
from torso.parallel.packs import stack_key


@dataclass
class Contestant:
    """A method in a setting: its tuning runs and, once its rates are chosen, its final runs."""

    plan: BoardPlan
    setting: str
    entry: BoardMethod
    combination: Combination | None = None  # if it comes from the search
    tuning: list[Trial] = field(init=False)
    finals: dict[int, Trial] = field(default_factory=dict)  # by seed
    facts: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)  # seeds → origin of the final runs
    published: Mapping[str, Any] | None = None  # its published row, with --go-on

    def __post_init__(self) -> None:
        self.tuning = self.plan.tuning(self.setting, self.entry)

    @cached_property
    def tuned_with(self) -> dict[str, Any]:
        """What the config of the tuning runs changes, without their rates."""
        (at_no_point,) = self.plan.tuning(self.setting, self.entry, [{}])
        return changed_as_json(at_no_point.config)

    def final(self, point: Point, seed: int) -> Trial:
        """The final run at a seed, with the chosen point."""
        if seed not in self.finals:
            self.finals[seed] = self.plan.final(self.setting, self.entry, point, seed)
        return self.finals[seed]

    def is_judged(self, point: Point, seeds: int) -> bool:
        """Whether the published row has the final runs of this point, at enough seeds."""
        return (
            self.published is not None and self.published["chosen"] == point and len(self.published["seeds"]) >= seeds
        )

    def widen(self, best: Point) -> list[Trial]:
        """Add the untried neighbours of the best point so far to the tuning runs, and return them."""
        points = self.plan.board.untried(best, [trial.point for trial in self.tuning])
        more = self.plan.tuning(self.setting, self.entry, points)
        self.tuning += more
        return more

    def stand_ins(self, seeds: int) -> list[Trial]:
        """Final runs with the first point of the grid, to estimate how long the real ones take."""
        point = self.tuning[0].point
        return [self.plan.final(self.setting, self.entry, point, seed) for seed in range(seeds)]


def in_turn(contestants: Sequence[Contestant], at_once: int) -> list[list[Contestant]]:
    """Groups of `at_once` families each, to be run one group after the other. So after a stop whole families are
    finished."""
    families = _families(contestants)
    starts = range(0, len(families), at_once)
    return [list(chain.from_iterable(families[start : start + at_once])) for start in starts]


def _families(contestants: Sequence[Contestant]) -> list[list[Contestant]]:
    """Contestants by family. The methods of a family train their clients alike, so their runs can share the steps of a
    device, in all settings."""
    setting = contestants[0].setting
    family_of: dict[str, str] = {}  # method → key of its family
    groups: dict[str, list[Contestant]] = {}
    for one in contestants:
        name = one.entry.name
        if name not in family_of:
            family_of[name] = stack_key(one.plan.config(setting, one.entry, {}))
        groups.setdefault(family_of[name], []).append(one)
    return list(groups.values())
