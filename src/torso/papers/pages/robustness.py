"""The part of docs/robustness.md that is made from docs/robustness/*.json: methods × attacks × server rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

from torso.papers.experiments.datasets import caveats_of
from torso.papers.experiments.provenance import machines_and_versions
from torso.papers.pages.robustness_picture import MEASURES, heat_map
from torso.papers.robust import records
from torso.papers.robust.answers import GENERIC, PERSONAL, WORST, Answers, Estimate
from torso.papers.robust.cells import Cell
from torso.papers.robust.definition import MEAN, NONE, Evidence, load
from torso.papers.robust.lengths import known_lengths
from torso.report.docs import replaced
from torso.report.docs import table as markdown

FOLDER, PAGE, SECTION, PICTURE = "robustness", "robustness.md", "robustness", "heat.svg"
FIRST = "fedavg"  # what the others are compared with
_BACKDOOR, _BEFORE = "backdoor", "backdoor_initial"
Row = dict[str, object]


class Section:
    """The generated part; what has not been run is left out."""

    def __init__(self, folder: Path, evidence: Evidence | None = None) -> None:
        self.known = evidence or load()
        self.answers = Answers(records.read(folder), self.known)
        self.lengths = {name: found["length"] for name, found in known_lengths(folder).items()}

    @property
    def picture(self) -> str:
        said = "accuracy by attack and server rule, for every method"
        return heat_map(self.answers, said) if self.answers.methods else ""

    def text(self) -> str:
        if not self.answers.methods:
            return "Nothing has been run yet."
        parts = (self._glance(), self._costs(), self._tables(), self._backdoor(), self._how())
        return "\n".join(line for part in parts for line in part).rstrip()

    def _label(self, method: str) -> str:
        return self.known.methods[method].label

    def _glance(self) -> Iterator[str]:
        numbers = ", ".join(f"{i + 1} {rule.label}" for i, rule in enumerate(self.known.rules.values()))
        yield f"![accuracy by attack and server rule, for every method]({FOLDER}/{PICTURE})"
        yield ""
        yield f"Rows are attacks, columns rules: {numbers}. **Generic** is the server's model on the whole test set."
        yield "**Personal** is the mean over honest clients, each with its own model on its own test data, and **worst"
        yield "tenth** the mean of the lowest tenth of them. An empty cell has not been run."
        yield ""
        for name, method in self.known.methods.items():
            cell = Cell(name, NONE, MEAN)
            if method.alone and self.answers.runs(cell):
                own, low = (Estimate.over(self.answers.values(cell, m).values()) for m in (PERSONAL, WORST))
                yield f"A client that trains alone as many epochs has {own} % (worst tenth {low} %), whoever attacks."
                yield ""

    def _costs(self) -> Iterator[str]:
        """What each attack takes from each method: under the mean, and under the rule that is best for it."""
        for measure, words in ((PERSONAL, "personal accuracy"), (WORST, "the worst tenth"), (GENERIC, "generic")):
            yield f"**What attacks take from {words}**, in points: without an attack under the plain mean, minus with"
            yield "the attack. First under the mean, then under the one rule that is best for the method over all"
            yield "attacks (below its name). ±: Student's 95 % interval over seeds."
            yield ""
            yield markdown([self._cost_row(attack, measure) for attack in self.answers.attacks if attack != NONE])
            yield ""

    def _cost_row(self, attack: str, measure: str) -> Row:
        costs = {self._head(method, measure): self._cost(method, attack, measure) for method in self.answers.methods}
        return {"attack": self.known.attacks[attack].label, **costs}

    def _head(self, method: str, measure: str) -> str:
        rule = self.answers.best_over_attacks(method, measure)
        return f"{self._label(method)}: mean; " + (self.known.rules[rule].label if rule else "–")

    def _cost(self, method: str, attack: str, measure: str) -> str:
        rules = (MEAN, self.answers.best_over_attacks(method, measure))
        lost = [self.answers.lost(Cell(method, attack, rule), measure) if rule else {} for rule in rules]
        return "; ".join(str(Estimate.over(by_seed.values())) if by_seed else "–" for by_seed in lost)

    def _tables(self) -> Iterator[str]:
        for method in self.answers.methods:
            planned = self.known.methods[method]
            yield f"### {planned.label}: {planned.shares}"
            yield ""
            yield f"{' / '.join(MEASURES.values())}, in %, means over seeds."
            yield ""
            yield markdown([self._row(method, attack) for attack in self.answers.attacks])
            yield ""
        spreads = [f"{words} {_two(self.answers.spread(m))}" for m, words in MEASURES.items() if self.answers.spread(m)]
        if spreads:
            yield f"Standard deviation over seeds, median and largest of all cells: {', '.join(spreads)}."
            yield "✗: so many seeds diverged; such a run counts as 10 %, which is chance."
            yield ""

    def _row(self, method: str, attack: str) -> Row:
        cells = {rule.label: self._cell(Cell(method, attack, name)) for name, rule in self.known.rules.items()}
        return {"attack": self.known.attacks[attack].label, **cells}

    def _cell(self, cell: Cell) -> str:
        if not self.answers.runs(cell):
            return "–"
        said = " / ".join(f"{self.answers.mean(cell, measure):.0f}" for measure in MEASURES)
        lost = self.answers.diverged(cell)
        return f"{said} ✗ {lost}" if lost else said

    def _backdoor(self) -> Iterator[str]:
        there = [m for m in self.answers.methods if self.answers.runs(Cell(m, _BACKDOOR, MEAN))]
        if not there:
            return
        yield "**Backdoor**: how often the honest clients' models take a marked image for the attackers' class, in %,"
        yield "before / after they make the model their own. Without a backdoor it is a rare mistake."
        yield ""
        rows: list[Row] = [
            {
                "method": self._label(m),
                **{rule.label: self._success(Cell(m, _BACKDOOR, name)) for name, rule in self.known.rules.items()},
            }
            for m in there
        ]
        yield markdown(rows)
        yield ""

    def _success(self, cell: Cell) -> str:
        runs = [run for run in self.answers.runs(cell).values() if run["status"] == "ok"]
        if not runs:
            return "–"
        return " / ".join(f"{fmean(run[name] for run in runs):.0f}" for name in (_BEFORE, _BACKDOOR))

    def _how(self) -> Iterator[str]:
        origins = [origin for record in self.answers.records.values() for origin in record["origins"]]
        files = {origin["data"]["file"]: origin["data"]["sha256"] for origin in origins}
        seeds = sorted({len(self.answers.runs(cell)) for cell in self.answers.cells()} - {0})
        lengths = ", ".join(
            f"{self._label(m)} {value:g}" for m, value in self.lengths.items() if m in self.known.methods
        )
        yield "**How it was run**"
        yield ""
        said = [
            *(text.replace("{lengths}", lengths or "not measured") for text in self.known.caveats),
            f"Seeds: {' or '.join(map(str, seeds))}.",
            *machines_and_versions(origins),
            *(f"SHA-256 of {name}: {found}." for name, found in files.items() if found),
            *caveats_of(files),
        ]
        yield from (f"- {text}" for text in said)
        yield ""


def _two(values: list[float]) -> str:
    return f"{median(values):.1f} and {max(values):.1f}" if values else str(math.nan)


def filled(text: str, section: Section) -> str:
    """The page with its generated part made anew."""
    return replaced(text, SECTION, section.text())


def write(docs: Path) -> None:
    """Write the generated part of the page, and its picture."""
    section, page = Section(docs / FOLDER), docs / PAGE
    page.write_text(filled(page.read_text("utf-8"), section), encoding="utf-8")
    picture = docs / FOLDER / PICTURE
    if section.picture:
        picture.write_text(section.picture, encoding="utf-8")
    else:
        picture.unlink(missing_ok=True)
