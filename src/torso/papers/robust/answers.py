"""What the files of results say: accuracies by seed, and what an attack costs, with its interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from torso.papers.experiments.result_files import Record
from torso.papers.robust.cells import Cell
from torso.papers.robust.definition import MEAN, NONE, Evidence
from torso.report.statistics import student_quantile

CHANCE = 10.0  # percent: what a run counts that diverged, ten classes
GENERIC, PERSONAL, WORST = "generic", "benign", "worst_tenth"
BySeed = Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and half of Student's 95 % interval; NaN with one seed."""

    mean: float
    half: float
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
    """The results, by cell."""

    records: Mapping[str, Record]
    known: Evidence

    def runs(self, cell: Cell) -> Mapping[str, Record]:
        """Seed → what came out."""
        rules = self.records.get(cell.file, {"rules": {}})["rules"]
        found: Mapping[str, Record] = rules.get(cell.rule, {"runs": {}})["runs"]
        return found

    def diverged(self, cell: Cell) -> int:
        return sum(run["status"] != "ok" for run in self.runs(cell).values())

    def values(self, cell: Cell, measure: str) -> BySeed:
        """A run that diverged counts as chance."""
        return {seed: float(run.get(measure, CHANCE)) for seed, run in self.runs(cell).items()}

    def mean(self, cell: Cell, measure: str) -> float:
        found = self.values(cell, measure)
        return fmean(found.values()) if found else math.nan

    def lost(self, cell: Cell, measure: str) -> BySeed:
        """Points that the attack takes: without an attack under the plain mean, minus the cell; by seed."""
        before = self.values(Cell(cell.method, NONE, MEAN), measure)
        return {seed: before[seed] - value for seed, value in self.values(cell, measure).items() if seed in before}

    def best_rule(self, method: str, attack: str, measure: str) -> str | None:
        """The rule with the highest mean over seeds."""
        found = {rule: self.mean(Cell(method, attack, rule), measure) for rule in self.known.rules}
        there = {rule: mean for rule, mean in found.items() if not math.isnan(mean)}
        return max(there, key=lambda rule: there[rule]) if there else None

    def best_over_attacks(self, method: str, measure: str) -> str | None:
        """The rule with the highest mean over the attacks that have been run under all rules."""
        attacks = [name for name in self.attacks if name != NONE and self._whole(method, name)]
        means = {
            rule: fmean(self.mean(Cell(method, attack, rule), measure) for attack in attacks)
            for rule in self.known.rules
            if attacks
        }
        return max(means, key=lambda rule: means[rule]) if means else None

    def _whole(self, method: str, attack: str) -> bool:
        return all(self.runs(Cell(method, attack, rule)) for rule in self.known.rules)

    @property
    def attacks(self) -> list[str]:
        """Those of which anything has been run."""
        return [a for a in self.known.attacks if any(self.runs(cell) for cell in self._cells(a))]

    @property
    def methods(self) -> list[str]:
        """Those with rounds of which anything has been run."""
        there = {cell.method for cell in self.cells() if self.runs(cell)}
        return [name for name, method in self.known.methods.items() if name in there and not method.alone]

    def _cells(self, attack: str) -> Iterator[Cell]:
        return (Cell(method, attack, rule) for method in self.known.methods for rule in self.known.rules)

    def cells(self) -> Iterator[Cell]:
        return (cell for attack in self.known.attacks for cell in self._cells(attack))

    def less_hurt(self, method: str, than: str, attack: str, rule: str, measure: str) -> Estimate:
        """Points that the attack takes from one method, minus those that it takes from another; paired by seed."""
        ours, theirs = (self.lost(Cell(name, attack, rule), measure) for name in (method, than))
        return Estimate.over(theirs[seed] - ours[seed] for seed in ours if seed in theirs)

    def spread(self, measure: str) -> list[float]:
        """Standard deviations over seeds, of all cells with several."""
        found = [list(self.values(cell, measure).values()) for cell in self.cells()]
        return [stdev(values) for values in found if len(values) > 1]
