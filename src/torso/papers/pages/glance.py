"""The first table of docs/reproduction: what came out of each paper, at a glance, with a picture for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torso.papers.pages.scatter import groups, scatter
from torso.papers.tables.answers import Answer
from torso.papers.tables.claims import Verdict
from torso.papers.tables.published import PAPERS, in_short
from torso.papers.tables.review import within_points
from torso.report.docs import table as markdown
from torso.results.files import write_text

_OUTCOMES = {"hold": "holds", "hold in part": "holds in part", "do not hold": "does not hold", "no evidence yet": ""}
_FEW = 10  # second lines of fewer numbers are not told at a glance
_FIRST = "first lines"
_WAYS = {  # what a second line has otherwise than the first, in a sentence
    "as the paper's code": "We run what the paper's code does, where it differs from the text.",
    "before fine-tuning": "LG-FedAvg is measured before fine-tuning.",
    "plain draw": "Clients are dealt by a Dirichlet draw alone. The first lines have the split of the author's code.",
    "clients of equal size": "All clients have the same number of images.",
    "plain draw, from random weights": "LG-FedAvg begins at random weights, not at FedAvg's last round.",
    "mirrored only": "Images are mirrored, as the paper says. The first lines also crop them.",
}


def glance(tables: Mapping[str, Sequence[Answer]], verdicts: Sequence[Verdict]) -> list[str]:
    """A row for each paper, and the pictures of those that have been run."""
    rows = [_row(key, paper, tables, verdicts) for key, paper in PAPERS.items()]
    shown = [f"![{paper}: ours against published]({key}.svg)" for key, paper in PAPERS.items() if of(key, tables)]
    pictures = [line for picture in shown for line in (picture, "")]
    return [_summed(verdicts), "", markdown(rows), "", *_legend(tables), *pictures]


def _summed(verdicts: Sequence[Verdict]) -> str:
    """How many claims of all papers hold, and so on."""
    counts = _outcomes(verdicts)
    *first, last, nothing = (f"{count} {outcome}" for outcome, count in counts.items())
    return f"Of {len(verdicts)} claims {', '.join(first)} and {last}; for {nothing.replace('no', 'there is no', 1)}."


def _outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    found = Counter(v.outcome if v.ours.there else "" for v in verdicts)
    return {words: found[outcome] for words, outcome in _OUTCOMES.items()}


def _row(
    key: str, paper: str, tables: Mapping[str, Sequence[Answer]], verdicts: Sequence[Verdict]
) -> dict[str, object]:
    counts = _outcomes([v for v in verdicts if v.claim.paper == paper])
    return {
        "paper": f"[{paper}](claims.md#{paper.lower()})",
        **dict(zip(("claims: hold", "in part", "do not", "no evidence"), counts.values(), strict=True)),
        "numbers near of numbers run": _near(of(key, tables)),
        "in short": in_short(key),
    }


def _near(answers: Sequence[Answer]) -> str:
    """First lines, then second lines of which there are many."""
    said = []
    for way, some in groups(answers).items():
        near, there = within_points(some)
        if _is_told(way, some):
            said.append(f"{near} of {there}" if way == _FIRST else f"*{way}*: {near} of {there}")
    return "<br>".join(said) or "none run"


def _is_told(way: str, some: Sequence[Answer]) -> bool:
    return way == _FIRST or within_points(some)[1] >= _FEW


def _legend(tables: Mapping[str, Sequence[Answer]]) -> list[str]:
    """What the names of the second lines in the table mean."""
    told = [way for key in PAPERS for way, some in groups(of(key, tables)).items() if _is_told(way, some)]
    ways = [f"- *{way}*: {_WAYS[way]}" for way in dict.fromkeys(told) if way in _WAYS]
    if not ways:
        return []
    said = (
        "The first count of a row is of the *first lines*: the settings as we read the paper. *Second lines* are the "
    )
    return [f"{said}same numbers, run in another way:", "", *ways, ""]


def of(key: str, tables: Mapping[str, Sequence[Answer]]) -> list[Answer]:
    """The answers of a paper that have been run."""
    return [a for name, answers in tables.items() if name.startswith(f"{key}/") for a in answers if a["ours"]]


def draw(tables: Mapping[str, Sequence[Answer]], folder: Path) -> None:
    """Write PAPER.svg for the papers that have been run."""
    for key, paper in PAPERS.items():
        if picture := scatter(paper, of(key, tables)):
            write_text(folder / f"{key}.svg", picture)
