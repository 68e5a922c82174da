"""The opening of docs/reproduction: what came out of each paper at a glance, the variants, and a picture per paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torso.papers.pages.scatter import MAIN, groups, scatter
from torso.papers.tables.answers import Answer
from torso.papers.tables.claims import Verdict
from torso.papers.tables.published import PAPERS, in_short
from torso.papers.tables.review import within_points
from torso.report.docs import table as markdown
from torso.results.files import write_text

_OUTCOMES = {"hold": "holds", "hold in part": "holds in part", "do not hold": "does not hold", "no evidence yet": ""}
_FEW = 10  # variants with fewer numbers are not shown at a glance
_DIFFERS = {  # variant → how it differs from the main runs
    "as the paper's code": "The run follows the paper's code, which differs from its text.",
    "before fine-tuning": "LG-FedAvg is measured before fine-tuning.",
    "plain draw": "Clients are dealt by a Dirichlet draw alone. The main runs deal them as the author's code does.",
    "clients of equal size": "All clients have the same number of images.",
    "plain draw, from random weights": "LG-FedAvg begins at random weights, not at FedAvg's last round.",
    "mirrored only": "Images are mirrored, as the paper says. The main runs also crop them.",
}


def glance(tables: Mapping[str, Sequence[Answer]], verdicts: Sequence[Verdict]) -> list[str]:
    """A table with a row for each paper, the words that it uses, the variants, and pictures of the papers that have
    been run."""
    rows = [_row(key, paper, tables, verdicts) for key, paper in PAPERS.items()]
    shown = [f"![{paper}: ours against published]({key}.svg)" for key, paper in PAPERS.items() if of(key, tables)]
    pictures = [line for picture in shown for line in (picture, "")]
    return [claims_in_words(verdicts), "", markdown(rows), "", *_WORDS, "", *_variants(tables), *pictures]


_WORDS = [
    "- A *claim* of a paper says that one number is larger than another: [claim by claim](claims.md).",
    "- A number is *near* if it lies within 3 points of the paper.",
    "- The *main runs* have the settings as we read the paper. A *variant* is the same number, run in another way.",
]


def claims_in_words(verdicts: Sequence[Verdict]) -> str:
    """A sentence with the number of claims of all papers that hold, hold in part, do not hold or have no evidence."""
    counts = _outcomes(verdicts)
    untested = counts.pop("no evidence yet")
    *first, last = (f"{count} {outcome}" for outcome, count in counts.items())
    return (
        f"Of {len(verdicts)} claims, {', '.join(first)} and {last}. For the other {untested} there is no evidence yet."
    )


def _outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Words for an outcome → how many verdicts have it."""
    found = Counter(v.outcome if v.ours.there else "" for v in verdicts)
    return {words: found[outcome] for words, outcome in _OUTCOMES.items()}


def _row(
    key: str, paper: str, tables: Mapping[str, Sequence[Answer]], verdicts: Sequence[Verdict]
) -> dict[str, object]:
    counts = _outcomes([v for v in verdicts if v.claim.paper == paper])
    return {
        "paper": f"[{paper}](claims.md#{paper.lower()})",
        **dict(zip(("claims that hold", "hold in part", "do not hold", "no evidence"), counts.values(), strict=True)),
        "main runs near": _near(groups(of(key, tables)).get(MAIN, [])),
        "in short": in_short(key),
    }


def _near(answers: Sequence[Answer]) -> str:
    """How many numbers are near the paper: `2 of 3`."""
    near, there = within_points(answers)
    return f"{near} of {there}" if there else "none run"


def _variants(tables: Mapping[str, Sequence[Answer]]) -> list[str]:
    """A table of the variants that have enough numbers."""
    rows: list[dict[str, object]] = [
        {"paper": paper, "variant": f"*{name}*", "near": _near(some), "how it differs": _DIFFERS.get(name, "")}
        for key, paper in PAPERS.items()
        for name, some in groups(of(key, tables)).items()
        if name != MAIN and within_points(some)[1] >= _FEW
    ]
    return ["The variants:", "", markdown(rows), ""] if rows else []


def of(key: str, tables: Mapping[str, Sequence[Answer]]) -> list[Answer]:
    """The answers of a paper that have been run."""
    return [a for name, answers in tables.items() if name.startswith(f"{key}/") for a in answers if a["ours"]]


def draw(tables: Mapping[str, Sequence[Answer]], folder: Path) -> None:
    """Write PAPER.svg for each paper that has been run."""
    for key, paper in PAPERS.items():
        if picture := scatter(paper, of(key, tables)):
            write_text(folder / f"{key}.svg", picture)
