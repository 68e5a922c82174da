"""The runs of a cell (a method in a setting): tuning runs choose rates on validation data, final runs use test data."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torso.config import Config, assign_all
from torso.papers.experiments.datasets import rooted
from torso.papers.experiments.provenance import changed_as_json
from torso.papers.experiments.result_files import key_of
from torso.papers.pretrained.definition import Block, Evidence, PlannedMethod, Setting

Point = Mapping[str, float]  # a point of the grid: key → value
_TRAINED_HERE = "trained here: "  # how a json file begins model.weights, in place of a folder of this machine


@dataclass(frozen=True)
class Cell:
    """A method in a setting."""

    setting: str
    method: str

    @property
    def name(self) -> str:
        return f"{self.setting}-{self.method}"


@dataclass(frozen=True)
class Trial:
    """A run of a cell, or the training of a body that comes first (`kind` body)."""

    cell: Cell
    kind: Literal["body", "tuning", "final"]
    point: Point
    seed: int
    config: Config
    weights: str = ""  # how a json file names model.weights, if that is a folder of this machine

    @property
    def name(self) -> str:
        if self.kind == "body":
            return body_folder(self.cell.setting, self.seed)
        rates = [f"{key.rpartition('.')[2]}{value:g}" for key, value in self.point.items()]
        return "-".join([self.cell.name, *rates, "validation" if self.kind == "tuning" else f"seed{self.seed}"])

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The config as the json file of the cell has it: the keys that differ from the defaults."""
        found = changed_as_json(self.config)
        return {**found, "model.weights": self.weights} if self.weights else found

    @cached_property
    def key(self) -> str:
        """A hash that is equal for runs of the same config, whatever their seed and machine."""
        return key_of(self.changes)


def body_folder(body: str, seed: int) -> str:
    return f"body-{body}-seed{seed}"


@dataclass(frozen=True)
class Plan:
    """The experiments as one command runs them."""

    evidence: Evidence
    work: Path  # folder of the runs
    defaults: tuple[str, ...] = ()  # KEY=VALUE that keys of a setting replace
    sets: tuple[str, ...] = ()  # KEY=VALUE that replace all others
    roots: Mapping[str, str] = field(default_factory=dict)  # data source → data.root
    rounds: float = 1.0  # share of all rounds

    def cells(self, block: Block) -> list[Cell]:
        """Every method of a block in every setting of it."""
        return [Cell(setting, method) for setting in block.settings for method in block.methods]

    def setting(self, cell: Cell) -> Setting:
        return self.evidence.settings[cell.setting]

    def method(self, cell: Cell) -> PlannedMethod:
        return self.evidence.methods[cell.method]

    def points(self, cell: Cell) -> list[Point]:
        """The points of the method's grid; a method without a grid has one empty point."""
        grid = self.method(cell).grid
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

    def bodies(self, block: Block) -> list[Trial]:
        """The trainings of the bodies that this block needs."""
        wanted = dict.fromkeys(s.body for name in block.settings if (s := self.evidence.settings[name]).body)
        return [self._body(name, seed) for name in wanted for seed in range(block.seeds)]

    def _body(self, name: str, seed: int) -> Trial:
        config = self._config((*self.evidence.bodies[name].sets, *self.sets, f"run.seed={seed}"))
        return Trial(Cell(name, "body"), "body", {}, seed, config)

    def tuning(self, cell: Cell) -> list[Trial]:
        """A run for each point of the grid, at seed 0; none if the grid has one point."""
        points = self.points(cell)
        if len(points) < 2:
            return []
        measures = self.setting(cell).measures[: self.setting(cell).chooses]
        more = (f"data.validation={self.evidence.validation}", "measure.every=0", _measured(measures))
        return [self._trial(cell, "tuning", point, 0, self.evidence.tuning, more) for point in points]

    def final(self, cell: Cell, point: Point, seed: int) -> Trial:
        """The run at a seed with the chosen point, measured on test data."""
        return self._trial(cell, "final", point, seed, 1.0, (_measured(self.setting(cell).measures),))

    def _trial(
        self,
        cell: Cell,
        kind: Literal["tuning", "final"],
        point: Point,
        seed: int,
        share: float,
        more: Sequence[str],
    ) -> Trial:
        setting, method = self.setting(cell), self.method(cell)
        rounds = max(1, round(method.rounds * setting.rounds * self.rounds * share))
        every = max(1, rounds // self.evidence.looks) if method.rounds else 0
        folder = str(self.work / body_folder(setting.body, seed)) if setting.body else ""
        said = (
            *(f"train.rounds={rounds}", f"measure.every={every}", 'measure.during=["generic"]'),
            *method.sets,
            *setting.sets,
            *([f"model.weights={folder}"] if folder else []),
            *(f"{key}={value}" for key, value in point.items()),
            *more,
            *self.sets,
            f"run.seed={seed}",
        )
        title = self.evidence.bodies[setting.body].title if setting.body else ""
        return Trial(cell, kind, point, seed, self._config(said), f"{_TRAINED_HERE}{title}" if title else "")

    def _config(self, said: Sequence[str]) -> Config:
        tree = assign_all(copy.deepcopy(self.evidence.config), (*self.defaults, *said))
        return rooted(Config(**tree), self.roots)


def _measured(names: Sequence[str]) -> str:
    return f"measure.names={json.dumps(list(names))}"
