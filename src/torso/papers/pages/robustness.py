"""The generated sections of docs/robustness-study.md, from docs/robustness/*/*.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from torso.papers.experiments.datasets import caveats_of
from torso.papers.experiments.provenance import machines_and_versions
from torso.papers.pages.robustness_picture import MEASURES, heat_map
from torso.papers.robust import records
from torso.papers.robust.answers import PERSONAL, WORST, Answers, Estimate
from torso.papers.robust.cells import Cell
from torso.papers.robust.definition import FILE, MEAN, NONE, SMALL, Evidence, load
from torso.papers.robust.lengths import known_lengths
from torso.report.docs import replaced
from torso.report.docs import table as markdown

FOLDER, PAGE = "robustness", "robustness-study.md"
PLANS = (FILE, SMALL)  # each has a folder of its name, a section robustness-NAME of the page, and a picture
FIRST = "fedavg"  # what the others are compared with
_BACKDOOR, _BEFORE = "backdoor", "backdoor_initial"
Row = dict[str, object]


class Section:
    """A generated section: the results in one folder. What has not been run is left out."""

    def __init__(self, folder: Path, evidence: Evidence) -> None:
        self.name, self.known = folder.name, evidence
        self.answers = Answers(records.read(folder), self.known)
        self.lengths = {name: found["length"] for name, found in known_lengths(folder).items()}

    @property
    def picture(self) -> str:
        said = "accuracy by attack and server rule, for every method"
        return heat_map(self.answers, said) if self.answers.methods else ""

    def text(self) -> str:
        if not self.answers.methods:
            return f"{self.known.title}: nothing has been run yet."
        parts = (self._glance(), self._compared(), self._costs(), self._tables(), self._backdoor(), self._how())
        return "\n".join(line for part in parts for line in part).rstrip()

    def _label(self, method: str) -> str:
        return self.known.methods[method].label

    def _glance(self) -> Iterator[str]:
        numbers = ", ".join(f"{i + 1} {rule.label}" for i, rule in enumerate(self.known.rules.values()))
        yield f"Setting: {self.known.title}."
        yield ""
        yield f"![accuracy by attack and server rule, for every method]({FOLDER}/{self.name}.svg)"
        yield ""
        yield f"Rows are attacks. Columns are rules: {numbers}. An empty cell has not been run."
        yield ""
        yield "- **Generic**: the server's model on the whole test set."
        yield "- **Personal**: the mean over honest clients, each with its own model on its own test data."
        yield "- **Worst tenth**: the mean of the lowest tenth of these clients."
        yield ""
        for name, method in self.known.methods.items():
            cell = Cell(name, NONE, MEAN)
            if method.alone and self.answers.runs(cell):
                own, low = (Estimate.over(self.answers.values(cell, m).values()) for m in (PERSONAL, WORST))
                yield f"A client that trains alone for as many epochs has {own} % (worst tenth {low} %)."
                yield ""

    def _compared(self) -> Iterator[str]:
        """The part on how much less accuracy the other methods lose than FedAvg, over all attacks."""
        others = [m for m in self.answers.methods if m != FIRST]
        met = [self.known.attacks[attack].label for attack in self.answers.met_by_all]
        if FIRST not in self.answers.methods or not others or not met:
            return
        first = self._label(FIRST)
        yield f"**Harder to poison than {first}?** A cell is the loss of {first} under attack minus the loss of the"
        yield "method, in points. Above 0 the method is harder to poison."
        yield ""
        yield f"- The mean is over these attacks: {'; '.join(met)}."
        yield "- A loss is counted from the accuracy without an attack, under the plain mean."
        yield "- *Best rule*: for each method, the rule that is best over these attacks, of the rules that met all of"
        yield "  them. It is chosen on the same test data."
        yield "- ±: Student's 95 % interval over seeds."
        yield ""
        yield markdown([self._compared_row(method) for method in others])
        yield ""

    def _compared_row(self, method: str) -> Row:
        row: Row = {"method": self._label(method)}
        for measure, words in MEASURES.items():
            best = [self.answers.best_over_attacks(name, measure) or MEAN for name in (FIRST, method)]
            for rules, how in (((MEAN, MEAN), "mean"), ((best[0], best[1]), "best rule")):
                row[f"{words}, {how}"] = str(self.answers.less_hurt(method, FIRST, rules, measure))
        return row

    def _costs(self) -> Iterator[str]:
        """The part on what each method loses under each attack: with the mean, and with its best rule."""
        rows = [attack for attack in self.answers.attacks if attack != NONE]
        if not rows:
            return
        yield "**Loss under each attack**, in points: accuracy without an attack under the plain mean, minus accuracy"
        yield "with the attack. The first number is under the mean. The second is under the method's best rule, which"
        yield "the head of the column names."
        yield ""
        for measure, words in MEASURES.items():
            yield f"Loss of {words} accuracy:" if measure != WORST else "Loss of the worst tenth:"
            yield ""
            yield markdown([self._cost_row(attack, measure) for attack in rows])
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
            yield f"A cell is {' / '.join(MEASURES.values())}, in %, means over seeds."
            yield ""
            yield markdown([self._row(method, attack) for attack in self.answers.attacks])
            yield ""
        spreads = [f"{words} {_two(self.answers.spread(m))}" for m, words in MEASURES.items() if self.answers.spread(m)]
        if spreads:
            yield f"Standard deviation over seeds, median and largest of all cells: {', '.join(spreads)}."
            yield "✗ and a number: this many seeds diverged. A run that diverged counts as 10 %, which is chance."
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
        yield "before / after the clients make the model their own. Without a backdoor this mistake is rare."
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


def sections(docs: Path) -> list[Section]:
    """A section for each plan."""
    return [Section(docs / FOLDER / plan.stem, load(plan)) for plan in PLANS]


def filled(text: str, made: Sequence[Section]) -> str:
    """The page with its generated sections made again."""
    for section in made:
        text = replaced(text, f"{FOLDER}-{section.name}", section.text())
    return text


def write(docs: Path) -> None:
    """Write the generated sections of the page, and their pictures."""
    made, page = sections(docs), docs / PAGE
    page.write_text(filled(page.read_text("utf-8"), made), encoding="utf-8")
    for section in made:
        path = docs / FOLDER / f"{section.name}.svg"
        if section.picture:
            path.write_text(section.picture, encoding="utf-8")
        else:
            path.unlink(missing_ok=True)
