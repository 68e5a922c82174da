"""The runs: a method under an attack with a server rule, at a seed."""

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
from torso.papers.experiments.provenance import changed
from torso.papers.experiments.result_files import key_of
from torso.papers.robust.definition import NONE, Evidence


@dataclass(frozen=True)
class Cell:
    """A method under an attack with a server rule."""

    method: str
    attack: str
    rule: str

    @property
    def file(self) -> str:
        """Cells of all rules have one file."""
        return f"{self.method}-{self.attack}"


@dataclass(frozen=True)
class Trial:
    """A run of a cell."""

    cell: Cell
    seed: int
    config: Config

    @property
    def name(self) -> str:
        return f"{self.cell.file}-{self.cell.rule}-seed{self.seed}"

    @cached_property
    def told(self) -> dict[str, Any]:
        """What of the config differs from the defaults."""
        found: dict[str, Any] = json.loads(json.dumps(changed(self.config)))
        return found

    @cached_property
    def key(self) -> str:
        return key_of(self.told)


@dataclass(frozen=True)
class Plan:
    """The experiments as one command runs them. `sets` stand above all else; `rounds`: share of all rounds; `work`: the
    folder of the runs; `only`: names of methods, attacks and rules, where not all of them are wanted; `seeds`: in place
    of the file's, if not 0."""

    evidence: Evidence
    work: Path
    sets: tuple[str, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)
    rounds: float = 1.0
    only: frozenset[str] = frozenset()
    seeds: int = 0

    def trials(self) -> Iterator[Trial]:
        """Attack after attack. The rules of a method stand together: they train in one stack."""
        for attack in self._wanted(self.evidence.attacks):
            for method in self._wanted(self.evidence.methods):
                for seed in range(self.seeds or self.evidence.seeds):
                    for rule in self._wanted(self.evidence.rules):
                        yield self.trial(Cell(method, attack, rule), seed)

    def _wanted(self, names: Collection[str]) -> list[str]:
        """Those of one kind that are asked for; all, where none of them is named."""
        return [name for name in names if name in self.only] or list(names)

    def trial(self, cell: Cell, seed: int) -> Trial:
        known = self.evidence
        method, attack, rule = known.methods[cell.method], known.attacks[cell.attack], known.rules[cell.rule]
        tree = assign_all(
            copy.deepcopy(known.config),
            (
                *method.sets,
                *(text.format(length=method.length) for text in rule.sets),
                *(attack.sets if cell.attack != NONE else ()),
                *self.sets,
                f"run.seed={seed}",
            ),
        )
        config = Config(**tree)
        names = (*config.measure.names, *attack.measures)
        rounds = max(1, round(config.train.rounds * self.rounds))
        fitted = config.but(f"measure.names={json.dumps(list(names))}", f"train.rounds={rounds}")
        return Trial(cell, seed, rooted(fitted, self.roots))
