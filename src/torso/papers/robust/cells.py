"""The runs of a plan: a method under an attack with a server rule, at a seed."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torso.config import Config, assign_all
from torso.papers.experiments.datasets import rooted
from torso.papers.experiments.provenance import changed_as_json
from torso.papers.experiments.result_files import key_of
from torso.papers.robust.definition import MEAN, NONE, Evidence


@dataclass(frozen=True)
class Cell:
    """A method under an attack with a server rule."""

    method: str
    attack: str
    rule: str

    @property
    def file(self) -> str:
        """Name of the json file: it has the cells of all rules."""
        return f"{self.method}-{self.attack}"


@dataclass(frozen=True)
class Trial:
    """A run of a cell at a seed."""

    cell: Cell
    seed: int
    config: Config

    @property
    def name(self) -> str:
        return f"{self.cell.file}-{self.cell.rule}-seed{self.seed}"

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The keys of the config that differ from the defaults."""
        return changed_as_json(self.config)

    @cached_property
    def key(self) -> str:
        return key_of(self.changes)


@dataclass(frozen=True)
class Plan:
    """The experiments as one command runs them."""

    evidence: Evidence
    work: Path  # folder of the runs
    sets: tuple[str, ...] = ()  # KEY=VALUE that replace all others
    roots: Mapping[str, str] = field(default_factory=dict)  # data source → data.root
    rounds: float = 1.0  # share of all rounds
    only: frozenset[str] = frozenset()  # names of the wanted methods, attacks and rules; empty: all
    seeds: int = 0  # in place of the definition's number, if not 0
    lengths: Mapping[str, float] = field(default_factory=dict)  # method → the value of `{length}` in a rule's settings

    @property
    def methods(self) -> list[str]:
        """The methods that are wanted."""
        return self._wanted(self.evidence.methods)

    @property
    def needs_lengths(self) -> bool:
        """Whether a wanted rule depends on the length of uploads."""
        return any("{length}" in text for rule in self._wanted(self.evidence.rules) for text in self._sets(rule))

    def _sets(self, rule: str) -> tuple[str, ...]:
        return self.evidence.rules[rule].sets

    def trials(self) -> Iterator[Trial]:
        """All runs, attack after attack. The rules of a method are neighbours, because they train in one stack."""
        for attack in self._wanted(self.evidence.attacks):
            for method in self.methods:
                cells = [Cell(method, attack, rule) for rule in self._wanted(self.evidence.rules)]
                configs = {cell: self._config(cell) for cell in cells if self._meets(cell)}
                for seed in range(self.seeds or self.evidence.seeds):
                    yield from (Trial(cell, seed, _seeded(config, seed)) for cell, config in configs.items())

    def trial(self, cell: Cell, seed: int) -> Trial:
        return Trial(cell, seed, _seeded(self._config(cell), seed))

    def plain(self, method: str) -> Trial:
        """The run of a method without an attack, under the mean, at seed 0."""
        return self.trial(Cell(method, NONE, MEAN), 0)

    def _meets(self, cell: Cell) -> bool:
        """Whether the cell has to be run. No attack and no rule changes clients that train alone, so for them one cell
        is enough."""
        return not self.evidence.methods[cell.method].alone or (cell.attack, cell.rule) == (NONE, MEAN)

    def _wanted(self, names: Collection[str]) -> list[str]:
        """The names that `only` has; all names if it has none of them."""
        return [name for name in names if name in self.only] or list(names)

    def _config(self, cell: Cell) -> Config:
        known = self.evidence
        method, attack = known.methods[cell.method], known.attacks[cell.attack]
        names = json.dumps([*known.config["measure"]["names"], *attack.measures])
        said = (
            f"measure.names={names}",
            *method.sets,
            *(text.format(length=self.lengths.get(cell.method)) for text in self._sets(cell.rule)),
            *attack.sets,
            *self.sets,
        )
        tree = assign_all(copy.deepcopy(known.config), said)
        tree["train"]["rounds"] = max(1, round(tree["train"]["rounds"] * self.rounds))
        return rooted(Config(**tree), self.roots)


def _seeded(config: Config, seed: int) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
