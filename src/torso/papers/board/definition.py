"""leaderboard.toml as validated data: settings, methods, the grid of rates, the search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from torso.config import explain, read_toml
from torso.errors import RequestError, did_you_mean
from torso.methods import methods

FILE = Path(__file__).with_name("leaderboard.toml")
NAME = "leaderboard"
CHOOSES = ("generic", "personalized")  # measures whose sum on validation data chooses the rates
Point = Mapping[str, float]  # a point of the grid: key → value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Strict):
    """A key of the grid with its values."""

    key: str
    short: str  # its name in folder names
    values: tuple[float, ...] = Field(min_length=1)
    beyond: tuple[float, ...] = ()  # values outside of the grid, tried if the best point so far is next to them

    @model_validator(mode="after")
    def _beyond_is_outside(self) -> Axis:
        if any(min(self.values) <= value <= max(self.values) for value in self.beyond):
            raise ValueError(f"{self.key}: beyond = {list(self.beyond)} has to be outside of {list(self.values)}")
        return self

    def beside(self, value: float) -> tuple[float, ...]:
        """The next smaller and the next larger value, those of `beyond` included."""
        every = sorted({*self.values, *self.beyond})
        place = every.index(value)
        return tuple(every[max(place - 1, 0) : place] + every[place + 1 : place + 2])


class Space(_Strict):
    """A part of the search space: every combination of one choice for each axis."""

    common: tuple[str, ...] = ()  # settings of all combinations
    axes: dict[str, dict[str, tuple[str, ...]]]  # axis → choice → settings


class SeparateSetting(_Strict):
    """A separate setting, which does not count in the places over all settings. `--only setting=NAME` runs it."""

    sets: tuple[str, ...]
    entries: dict[str, tuple[str, ...]] = {}  # methods that compete only here → settings
    without: dict[str, str] = {}  # methods of the board that cannot compete here → why
    why: str  # what a reader should know about the setting


class Search(_Strict):
    """What the search for new combinations tries."""

    settings: tuple[str, ...] = Field(min_length=1)
    best: int = Field(ge=1)  # how many new combinations are entered into the board
    spaces: tuple[Space, ...]


class Board(_Strict):
    """The definition of the leaderboard."""

    title: str
    validation: float = Field(gt=0, lt=1)  # share of every client's training samples that choose the rates
    measures: tuple[str, ...]
    config: dict[str, Any]  # what all runs have in common
    settings: dict[str, tuple[str, ...]]
    later: dict[str, SeparateSetting] = {}  # separate settings
    grid: tuple[Axis, ...] = Field(min_length=1)
    entries: dict[str, tuple[str, ...]]  # preset → its further settings
    follows: dict[str, dict[str, str]] = {}  # method → one of its keys → the key of the grid whose value it takes
    left_out: dict[str, tuple[str, ...]] = {}  # why → presets
    caveats: tuple[str, ...] = ()
    search: Search

    def sets_of(self, setting: str) -> tuple[str, ...]:
        """KEY=VALUE of a setting of either kind."""
        return self.later[setting].sets if setting in self.later else self.settings[setting]

    def untried(self, best: Point, tried: Sequence[Point]) -> list[Point]:
        """The neighbours of the best point that have not been tried. The rule is the same for all methods, so that no
        result depends on where the grid ends."""
        near = [
            {**best, axis.key: value} for axis in self.grid if axis.key in best for value in axis.beside(best[axis.key])
        ]
        return [point for point in near if point not in tried]

    @model_validator(mode="after")
    def _names_exist(self) -> Board:
        later = (name for setting in self.later.values() for name in setting.entries)
        for name in (*self.entries, *later, *(name for names in self.left_out.values() for name in names)):
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
    """The definition in a file."""
    try:
        return Board(**read_toml(path))
    except ValidationError as error:
        raise RequestError(f"{path.name}: {explain_board(error)}") from None


def explain_board(error: ValidationError) -> str:
    """The first error of a definition in a line."""
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, first['loc']))} is not a key. Keys: {', '.join(Board.model_fields)}"
    return explain(error) if first["loc"] else first["msg"].removeprefix("Value error, ")
