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

_OUTCOMES = {"hold": "holds", "in part": "holds in part", "do not": "does not hold", "no evidence": ""}
_FEW = 10  # second lines of fewer numbers are not told at a glance


def glance(tables: Mapping[str, Sequence[Answer]], verdicts: Sequence[Verdict]) -> list[str]:
    """A row for each paper, and the pictures of those that have been run."""
    rows = [_row(key, paper, tables, verdicts) for key, paper in PAPERS.items()]
    shown = [f"![{paper}: ours against published]({key}.svg)" for key, paper in PAPERS.items() if of(key, tables)]
    return [markdown(rows), "", *(line for picture in shown for line in (picture, ""))]


def _row(
    key: str, paper: str, tables: Mapping[str, Sequence[Answer]], verdicts: Sequence[Verdict]
) -> dict[str, object]:
    found = Counter(v.outcome if v.ours.there else "" for v in verdicts if v.claim.paper == paper)
    counts = " / ".join(str(found[outcome]) for outcome in _OUTCOMES.values())
    return {
        "paper": f"[{paper}](claims.md#{paper.lower()})",
        f"claims: {' / '.join(_OUTCOMES)}": counts,
        "numbers near of numbers run": _near(of(key, tables)),
        "in short": in_short(key),
    }


def _near(answers: Sequence[Answer]) -> str:
    """First lines, then second lines of which there are many."""
    said = []
    for way, some in groups(answers).items():
        near, there = within_points(some)
        if way == "first lines":
            said.append(f"{near} of {there}")
        elif there >= _FEW:
            said.append(f"{way}: {near} of {there}")
    return "; ".join(said) or "none run"


def of(key: str, tables: Mapping[str, Sequence[Answer]]) -> list[Answer]:
    """The answers of a paper that have been run."""
    return [a for name, answers in tables.items() if name.startswith(f"{key}/") for a in answers if a["ours"]]


def draw(tables: Mapping[str, Sequence[Answer]], folder: Path) -> None:
    """Write PAPER.svg for the papers that have been run."""
    for key, paper in PAPERS.items():
        if picture := scatter(paper, of(key, tables)):
            write_text(folder / f"{key}.svg", picture)
