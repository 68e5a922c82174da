"""The leaderboard as data: settings, entries, the grid, and the runs that follow from them (leaderboard.toml)."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from torso.config import Config, assign_all, explain, read_toml
from torso.errors import RequestError, did_you_mean
from torso.methods import methods
from torso.papers.files import rooted
from torso.papers.sharing import measuring_key

FILE = Path(__file__).with_name("leaderboard.toml")
NAME = "leaderboard"
CHOOSES = ("generic", "personalized")  # whose sum on validation data decides
Point = Mapping[str, float]  # a choice from the grid


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Strict):
    """A key of the grid; `short` is how folders spell it. Values `beyond` are tried where the best so far is next to
    one."""

    key: str
    short: str
    values: tuple[float, ...] = Field(min_length=1)
    beyond: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _beyond_is_outside(self) -> Axis:
        if any(min(self.values) <= value <= max(self.values) for value in self.beyond):
            raise ValueError(f"{self.key}: beyond = {list(self.beyond)} has to be outside of {list(self.values)}")
        return self

    def beside(self, value: float) -> tuple[float, ...]:
        """The next smaller and the next larger one."""
        every = sorted({*self.values, *self.beyond})
        place = every.index(value)
        return tuple(every[max(place - 1, 0) : place] + every[place + 1 : place + 2])


class Space(_Strict):
    """A factorial: axis → choice → KEY=VALUE; every combination of one choice each, over what is common."""

    common: tuple[str, ...] = ()
    axes: dict[str, dict[str, tuple[str, ...]]]


class Search(_Strict):
    settings: tuple[str, ...] = Field(min_length=1)
    best: int = Field(ge=1)  # how many of the new combinations become entries
    spaces: tuple[Space, ...]


class Board(_Strict):
    title: str
    validation: float = Field(gt=0, lt=1)
    measures: tuple[str, ...]
    config: dict[str, Any]  # what all runs have in common
    settings: dict[str, tuple[str, ...]]
    grid: tuple[Axis, ...] = Field(min_length=1)
    entries: dict[str, tuple[str, ...]]
    follows: dict[str, dict[str, str]] = {}  # entry → key of its own → key of the grid whose value it takes too
    left_out: dict[str, tuple[str, ...]] = {}  # why → presets
    caveats: tuple[str, ...] = ()
    search: Search

    def untried(self, best: Point, tried: Sequence[Point]) -> list[Point]:
        """The neighbours of the best point that have not been tried: the same rule for all, so that nobody is judged by
        where the grid happens to end."""
        near = [
            {**best, axis.key: value} for axis in self.grid if axis.key in best for value in axis.beside(best[axis.key])
        ]
        return [point for point in near if point not in tried]

    @model_validator(mode="after")
    def _names_exist(self) -> Board:
        for name in (*self.entries, *(name for names in self.left_out.values() for name in names)):
            if name not in methods:
                raise ValueError(f"the preset {name!r} is unknown{did_you_mean(name, methods)}")
        for name, keys in self.follows.items():
            if name not in self.entries or not set(keys.values()) <= {axis.key for axis in self.grid}:
                raise ValueError(f"follows.{name} = {keys} has to be an entry, and its keys follow keys of the grid")
        for name in self.search.settings:
            if name not in self.settings:
                raise ValueError(f"search.settings has {name!r}; settings are {', '.join(self.settings)}")
        for name in CHOOSES:
            if name not in self.measures:
                raise ValueError(f"measures lacks {name!r}, by which rates are chosen")
        return self


@cache
def load(path: Path = FILE) -> Board:
    try:
        return Board(**read_toml(path))
    except ValidationError as error:
        raise RequestError(f"{path.name}: {explain_board(error)}") from None


def explain_board(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, first['loc']))} is not a key. Keys: {', '.join(Board.model_fields)}"
    return explain(error) if first["loc"] else first["msg"].removeprefix("Value error, ")


@dataclass(frozen=True)
class Entry:
    """Who competes: KEY=VALUE over the common config, `method.name` among them; `new`: found by the search."""

    name: str
    sets: tuple[str, ...]
    new: bool = False


def presets(board: Board) -> list[Entry]:
    return [Entry(name, (f"method.name={name}", *sets)) for name, sets in board.entries.items()]


def strangers(board: Board) -> list[Entry]:
    """Methods that the board does not speak of: registered by a plugin."""
    spoken = {*board.entries, *(name for names in board.left_out.values() for name in names)}
    return [Entry(name, (f"method.name={name}",)) for name in methods if name not in spoken]


@dataclass(frozen=True)
class Trial:
    """One run: an entry in a setting with a point of the grid, to choose the point by (`chooses`) or to be judged."""

    name: str
    config: Config
    point: Point
    chooses: bool

    @property
    def seed(self) -> int:
        return self.config.run.seed


@dataclass(frozen=True)
class Arena:
    """The board as one command runs it: with what the user sets, and where data lie."""

    board: Board
    sets: tuple[str, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {*(axis.key for axis in self.board.grid), "data.validation", "run.seed", "measure.names", "method.name"}
        for said in self.sets:
            key = said.partition("=")[0].strip()
            if key in own:
                raise RequestError(
                    f"--set {said!r}: the leaderboard sets {key} itself (the same grid, seeds and measures for all). "
                    "Accepted: other keys, --seeds N, --only method=NAME"
                )

    def config(self, setting: str, entry: Entry, point: Point, *more: str) -> Config:
        said = (*self.board.settings[setting], *entry.sets, *self.sets)
        chosen = [f"{key}={value}" for key, value in point.items()]
        own = self.board.follows.get(entry.name, {})
        chosen += [f"{key}={point[followed]}" for key, followed in own.items() if followed in point]
        tree = assign_all(copy.deepcopy(self.board.config), (*said, *chosen, *more))
        return rooted(_in_budget(Config(**tree)), self.roots)

    def points(self, setting: str, entry: Entry) -> list[dict[str, float]]:
        """The grid without points that would measure the same again; a key that changes nothing is left out."""
        axes = [self._live(axis, setting, entry) for axis in self.board.grid]
        kept = [axis for axis in axes if axis is not None]
        return [
            dict(zip([axis.key for axis in kept], values, strict=True))
            for values in itertools.product(*(axis.values for axis in kept))
        ]

    def _live(self, axis: Axis, setting: str, entry: Entry) -> Axis | None:
        keys = {measuring_key(self.config(setting, entry, {axis.key: value})) for value in axis.values}
        return axis if len(keys) > 1 or len(axis.values) == 1 else None

    def tuning(self, setting: str, entry: Entry, points: Sequence[Point] | None = None) -> list[Trial]:
        """The runs that choose: held-out training samples stand in for test data, at the first seed."""
        more = (f"data.validation={self.board.validation}", "run.seed=0", _measured(CHOOSES))
        return [
            Trial(
                f"{self._name(setting, entry, point)}-validation",
                self.config(setting, entry, point, *more),
                point,
                True,
            )
            for point in (self.points(setting, entry) if points is None else points)
        ]

    def final(self, setting: str, entry: Entry, point: Point, seed: int) -> Trial:
        """The run that is judged: on test data, with the point that was chosen."""
        more = (f"run.seed={seed}", _measured(self.board.measures))
        name = f"{self._name(setting, entry, point)}-seed{seed}"
        return Trial(name, self.config(setting, entry, point, *more), point, False)

    def _name(self, setting: str, entry: Entry, point: Point) -> str:
        parts = [f"{axis.short}{point[axis.key]:g}" for axis in self.board.grid if axis.key in point]
        return "-".join([setting, entry.name, *parts])


def _in_budget(config: Config) -> Config:
    """A method that begins with another's rounds has them within train.rounds, not before them."""
    method = config.method
    return config.model_copy(update={"method": method.but(start=method.start.within(config.train.rounds))})


def _measured(names: Sequence[str]) -> str:
    return f"measure.names={json.dumps(list(names))}"
