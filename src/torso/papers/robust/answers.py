"""Accuracies by seed from the json files, and what an attack costs, with its interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from torso.papers.experiments.result_files import Record
from torso.papers.robust.cells import Cell
from torso.papers.robust.definition import MEAN, NONE, Evidence
from torso.report.statistics import student_quantile

CHANCE = 10.0  # accuracy in % that counts for a run that diverged: chance among ten classes
GENERIC, PERSONAL, WORST = "generic", "benign", "worst_tenth"
BySeed = Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its error."""

    mean: float
    half: float  # of Student's 95 % interval; NaN with one seed
    seeds: int

    @classmethod
    def over(cls, values: Iterable[float]) -> Estimate:
        found = list(values)
        if len(found) < 2:
            return cls(found[0] if found else math.nan, math.nan, len(found))
        half = student_quantile(len(found) - 1) * stdev(found) / math.sqrt(len(found))
        return cls(fmean(found), half, len(found))

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if math.isnan(self.half) else f" ± {self.half:.1f}")


@dataclass(frozen=True)
class Answers:
    """The results of a plan, by cell."""

    records: Mapping[str, Record]
    known: Evidence

    def runs(self, cell: Cell) -> Mapping[str, Record]:
        """Seed → record of the run."""
        rules = self.records.get(cell.file, {"rules": {}})["rules"]
        found: Mapping[str, Record] = rules.get(cell.rule, {"runs": {}})["runs"]
        return found

    def diverged(self, cell: Cell) -> int:
        return sum(run["status"] != "ok" for run in self.runs(cell).values())

    def values(self, cell: Cell, measure: str) -> BySeed:
        """Seed → value of a measure. A run that diverged counts as chance."""
        return {seed: float(run.get(measure, CHANCE)) for seed, run in self.runs(cell).items()}

    def mean(self, cell: Cell, measure: str) -> float:
        found = self.values(cell, measure)
        return fmean(found.values()) if found else math.nan

    def lost(self, cell: Cell, measure: str) -> BySeed:
        """Seed → points that the method loses: without an attack under the plain mean, minus this cell."""
        before = self.values(Cell(cell.method, NONE, MEAN), measure)
        return {seed: before[seed] - value for seed, value in self.values(cell, measure).items() if seed in before}

    @property
    def met_by_all(self) -> list[str]:
        """The attacks that were run with every method, under the plain mean and at the same seeds."""
        return [
            attack
            for attack in self.attacks
            if attack != NONE and len({tuple(self.runs(Cell(method, attack, MEAN))) for method in self.methods}) == 1
        ]

    def best_over_attacks(self, method: str, measure: str) -> str | None:
        """The rule with the highest mean over the attacks of `met_by_all`, of the rules that were run with all of them
        at all seeds; None if there is none."""
        met = self.met_by_all
        means = {
            rule: fmean(self.mean(Cell(method, attack, rule), measure) for attack in met)
            for rule in self.known.rules
            if met and all(self._as_often(method, attack, rule) for attack in met)
        }
        return max(means, key=lambda rule: means[rule]) if means else None

    def _as_often(self, method: str, attack: str, rule: str) -> bool:
        return self.runs(Cell(method, attack, rule)).keys() == self.runs(Cell(method, attack, MEAN)).keys()

    @property
    def attacks(self) -> list[str]:
        """The attacks with at least one run."""
        return [a for a in self.known.attacks if any(self.runs(cell) for cell in self._cells(a))]

    @property
    def methods(self) -> list[str]:
        """The methods with at least one run, without training alone."""
        there = {cell.method for cell in self.cells() if self.runs(cell)}
        return [name for name, method in self.known.methods.items() if name in there and not method.alone]

    def _cells(self, attack: str) -> Iterator[Cell]:
        return (Cell(method, attack, rule) for method in self.known.methods for rule in self.known.rules)

    def cells(self) -> Iterator[Cell]:
        return (cell for attack in self.known.attacks for cell in self._cells(attack))

    def less_hurt(self, method: str, than: str, rules: tuple[str, str], measure: str) -> Estimate:
        """Points that another method (`than`) loses under attack, minus those that this method loses: the mean over
        the attacks of `met_by_all`, paired by seed. `rules`: the other method's and this method's."""
        apart: dict[str, list[float]] = {}
        for attack in self.met_by_all:
            theirs = self.lost(Cell(than, attack, rules[0]), measure)
            ours = self.lost(Cell(method, attack, rules[1]), measure)
            for seed in theirs.keys() & ours.keys():
                apart.setdefault(seed, []).append(theirs[seed] - ours[seed])
        return Estimate.over(fmean(apart[seed]) for seed in sorted(apart))

    def spread(self, measure: str) -> list[float]:
        """The standard deviation over seeds of every cell with several seeds."""
        found = [list(self.values(cell, measure).values()) for cell in self.cells()]
        return [stdev(values) for values in found if len(values) > 1]
