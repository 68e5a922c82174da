"""The configs of the leaderboard: tuning runs choose rates on validation data, final runs are measured on test data."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torso.config import Config, assign_all
from torso.errors import RequestError
from torso.methods import methods
from torso.papers.board.definition import CHOOSES, Axis, Board, Point
from torso.papers.experiments.datasets import rooted
from torso.papers.experiments.reuse import measuring_key


@dataclass(frozen=True)
class BoardMethod:
    """A method on the board: its settings over the common config."""

    name: str
    sets: tuple[str, ...]  # KEY=VALUE
    new: bool = False  # found by the search; no preset has it


def presets(board: Board) -> list[BoardMethod]:
    """The presets that compete."""
    return [BoardMethod(name, (f"method.name={name}", *sets)) for name, sets in board.entries.items()]


def later_presets(board: Board, setting: str) -> list[BoardMethod]:
    """The methods of a separate setting: those of the board that can compete in it, and its own."""
    said = board.later[setting]
    own = [BoardMethod(name, (f"method.name={name}", *sets)) for name, sets in said.entries.items()]
    return [*(entry for entry in presets(board) if entry.name not in said.without), *own]


def plugin_methods(board: Board) -> list[BoardMethod]:
    """The methods that a plugin has registered: those that leaderboard.toml does not name."""
    named = {*board.entries, *(name for names in board.left_out.values() for name in names)}
    return [BoardMethod(name, (f"method.name={name}",)) for name in methods if name not in named]


@dataclass(frozen=True)
class Trial:
    """A run of a method in a setting, with a point of the grid."""

    name: str
    config: Config
    point: Point


@dataclass(frozen=True)
class BoardPlan:
    """The board as one command runs it."""

    board: Board
    sets: tuple[str, ...] = ()  # the user's --set
    roots: Mapping[str, str] = field(default_factory=dict)  # data source → data.root

    def __post_init__(self) -> None:
        own = {*(axis.key for axis in self.board.grid), "data.validation", "run.seed", "measure.names", "method.name"}
        for said in self.sets:
            key = said.partition("=")[0].strip()
            if key in own:
                raise RequestError(
                    f"--set {said!r}: the leaderboard sets {key} itself (the same grid, seeds and measures for all). "
                    "Accepted: other keys, --seeds N, --only method=NAME"
                )

    def config(self, setting: str, entry: BoardMethod, point: Point, *more: str) -> Config:
        """The config of a method in a setting, with a point of the grid and further settings."""
        said = (*self.board.sets_of(setting), *entry.sets, *self.sets)
        chosen = [f"{key}={value}" for key, value in point.items()]
        own = self.board.follows.get(entry.name, {})
        chosen += [f"{key}={point[followed]}" for key, followed in own.items() if followed in point]
        tree = assign_all(copy.deepcopy(self.board.config), (*said, *chosen, *more))
        return rooted(_in_budget(Config(**tree)), self.roots)

    def points(self, setting: str, entry: BoardMethod) -> list[dict[str, float]]:
        """The points of the grid. Keys that change nothing for this method are left out."""
        axes = [self._live(axis, setting, entry) for axis in self.board.grid]
        kept = [axis for axis in axes if axis is not None]
        return [
            dict(zip([axis.key for axis in kept], values, strict=True))
            for values in itertools.product(*(axis.values for axis in kept))
        ]

    def _live(self, axis: Axis, setting: str, entry: BoardMethod) -> Axis | None:
        """The axis, or None if its values change nothing for this method."""
        keys = {measuring_key(self.config(setting, entry, {axis.key: value})) for value in axis.values}
        return axis if len(keys) > 1 or len(axis.values) == 1 else None

    def tuning(self, setting: str, entry: BoardMethod, points: Sequence[Point] | None = None) -> list[Trial]:
        """The tuning runs of some points (default: of the grid), measured on held-out training samples at seed 0."""
        more = (f"data.validation={self.board.validation}", "run.seed=0", _measured(CHOOSES))
        return [
            Trial(
                f"{self._name(setting, entry, point)}-validation",
                self.config(setting, entry, point, *more),
                point,
            )
            for point in (self.points(setting, entry) if points is None else points)
        ]

    def final(self, setting: str, entry: BoardMethod, point: Point, seed: int) -> Trial:
        """The final run of the chosen point, measured on test data."""
        more = (f"run.seed={seed}", _measured(self.board.measures))
        name = f"{self._name(setting, entry, point)}-seed{seed}"
        return Trial(name, self.config(setting, entry, point, *more), point)

    def _name(self, setting: str, entry: BoardMethod, point: Point) -> str:
        parts = [f"{axis.short}{point[axis.key]:g}" for axis in self.board.grid if axis.key in point]
        return "-".join([setting, entry.name, *parts])


def _in_budget(config: Config) -> Config:
    """The config with all rounds within train.rounds, also those of another method at its start (LG-FedAvg)."""
    method = config.method
    return config.model_copy(update={"method": method.but(start=method.start.within(config.train.rounds))})


def _measured(names: Sequence[str]) -> str:
    return f"measure.names={json.dumps(list(names))}"


def score(validation: Mapping[str, float] | None) -> float:
    """Generic plus personalised accuracy on validation data; 0 for a run that diverged."""
    return sum(validation.values()) if validation else 0.0


def best_of(tried: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The point with the largest score; the first of equal ones."""
    return max(tried, key=lambda one: score(one["validation"]))
