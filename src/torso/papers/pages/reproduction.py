"""The pages of docs/reproduction: every table beside its published numbers, and the papers' claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torso.papers.experiments.datasets import caveats_of
from torso.papers.experiments.provenance import machines_and_versions
from torso.papers.pages.claims import page as page_of_claims
from torso.papers.pages.claims import verdicts
from torso.papers.pages.glance import draw, glance
from torso.papers.pages.table import cell, layout, notes, place
from torso.papers.pages.tried import page as page_of_tried
from torso.papers.pretrained import records
from torso.papers.pretrained.answers import own_answers
from torso.papers.tables.answers import Answer
from torso.papers.tables.claims import OWN
from torso.papers.tables.collect import blank, read, whole_table
from torso.papers.tables.published import PAPERS, TRIED, names, recipe
from torso.papers.tables.review import review
from torso.papers.tables.settings import REASONS
from torso.registry import plain
from torso.report.docs import table as markdown
from torso.report.summary import counted

FOLDER = Path("docs") / "reproduction"


def overview(tables: Mapping[str, Sequence[Answer]], own: Sequence[Answer] = ()) -> str:
    """The text of README.md: what came out at a glance, the review of every table, and the tables. `own`: as
    `claims_page` has it."""
    lines = [
        "# What was run",
        "",
        "Tables of four papers, run again with Torso. A *claim* says that one number is larger than another "
        "([claim by claim](claims.md)). A number is *near* if it lies within 3 points of the paper. "
        "[The papers' tables](../reproduction.md) says how to run one, and why some numbers differ.",
        "",
        *glance(tables, verdicts(_with_blanks(tables, own))),
    ]
    if not tables:
        return "\n".join([*lines, "No table has been run yet.", "", *_out_of_reach()])
    lines += ["## How it was run", "", *_of_runs(tables), "## Table by table", ""]
    lines += [markdown([_row(name, answers) for name, answers in tables.items()]), "", *_legend(), ""]
    for key, paper in PAPERS.items():
        lines += _of_paper(paper, {name: found for name, found in tables.items() if name.startswith(f"{key}/")})
    return "\n".join([*lines, *_out_of_reach()])


def _of_paper(paper: str, tables: Mapping[str, Sequence[Answer]]) -> list[str]:
    """The tables of a paper. Notes that several of them have are told once, first."""
    said = {name: notes(recipe(name), answers) for name, answers in tables.items()}
    times = Counter(note for each in said.values() for note in each)
    shared = [note for note, count in times.items() if count > 1]
    lines = [f"## {paper}", "", *(f"- {note}" for note in shared), ""] if tables else []
    for name, answers in tables.items():
        lines += [f"### {name}: {recipe(name).title}", "", _as_markdown(name, answers), ""]
        lines += [*(f"- {note}" for note in said[name] if note not in shared), ""]
    return lines


def _out_of_reach() -> list[str]:
    """Which published numbers cannot be run here, and why."""
    tables: dict[str, dict[str, int]] = {}
    total = 0
    for name in names():
        total += len(recipe(name).numbers)
        for reason, count in whole_table(name).refused.items():
            tables.setdefault(reason, {})[name] = count
    rows: list[dict[str, object]] = [
        {
            "numbers": sum(counts.values()),
            "why": REASONS[reason],
            "tables": ", ".join(f"{name} ({count})" for name, count in counts.items()),
        }
        for reason, counts in tables.items()
    ]
    missing = sum(sum(counts.values()) for counts in tables.values())
    said = f"Of {total} published numbers {total - missing} can be run. Unreadable cells of the papers are not counted."
    return ["## What cannot be run", "", said, "", markdown(rows), ""]


def _of_runs(tables: Mapping[str, Sequence[Answer]]) -> list[str]:
    """Machines, versions, seeds and data of the results."""
    run = [answer for answers in tables.values() for answer in answers if answer["ours"]]
    if not run:
        return []
    seeds = sorted({len(a["ours"]["seeds"]) for a in run})
    said = [
        *machines_and_versions(run),
        f"Seeds: {' or '.join(map(str, seeds))}.",
        *caveats_of(a["data"] for a in run),
        _traced(run),
    ]
    return [*(f"- {text}" for text in said), ""]


def _traced(run: Sequence[Answer]) -> str:
    """What is known of how a number was made, and what is not."""
    summed = sum("sha256" in answer for answer in run)
    return (
        "Every number has its config, seeds, versions and machine in the json file of its table. The SHA-256 of data "
        f"and final models came later: {summed} of {len(run)} numbers have them. Of the others neither the sums nor "
        "the commit of Torso are known. [What is promised](../reproduction.md#same-bits)."
    )


def _legend() -> list[str]:
    return [
        "The columns:",
        "",
        "- **near**: of the numbers that can be compared, how many lie within 3 points of the paper. Training that "
        "diverged is not near.",
        "- **within the error**: of the numbers with several seeds, how many lie within Student's 95 % interval of "
        "ours minus published. The interval counts the spread of both over seeds. If the paper gives no spread over "
        "seeds (FedBABU's and FedFN's is over the clients of one run), we assume that of ours. With three seeds "
        "against one run the interval is five standard deviations wide on either side: a number within it says "
        "little, a number outside it says much.",
        "- **difference**: the mean of ours minus published, in points.",
        "- **order**: the rank correlation of the methods (or options) with the paper's, averaged over settings with "
        "three or more. Difference and order leave out what diverged at any seed.",
        "- **second lines near**: they count in no other column. If second lines are near and the first lines of the "
        "same numbers are not, the published numbers were probably made in that way.",
        "",
        "The cells of the tables below: ours (published, difference), in %. ✗: training diverged or failed, at all "
        "seeds or at the number of seeds given; the mean is then over the other seeds.",
        "",
        "Some numbers stand in several tables. If only one table has run a number, the others show its result (`from` "
        "in the json file). If several have run it, each shows its own; on an accelerator two trainings of one config "
        "and seed are the same to rounding only.",
    ]


def _row(name: str, answers: Sequence[Answer]) -> dict[str, object]:
    found = review(answers)
    failed = f" ({found.diverged} diverged)" if found.diverged else ""
    firsts = ["" if it.first is None else f" (first lines: {it.first})" for it in found.second]
    seconds = [f"{it.name}: {it.near} of {it.there}{first}" for it, first in zip(found.second, firsts, strict=True)]
    return {
        "table": f"[{name}](#{_anchor(name)})",
        "numbers run": f"{found.measured} of {found.numbers}{failed}",
        "near": f"{found.near[0]} of {found.near[1]}" if found.near[1] else "–",
        "within the error": f"{found.within[0]} of {found.within[1]}" if found.within[1] else "–",
        "difference": "–" if math.isnan(found.offset) else f"{found.offset:+.1f}",
        "order": "–" if math.isnan(found.order) else f"{found.order:.2f} ({counted(found.settings, 'setting')})",
        "second lines near": "; ".join(seconds) or "–",
    }


def _anchor(name: str) -> str:
    """The anchor that GitHub gives to the heading of a table."""
    title = f"{name}: {recipe(name).title}".lower()
    return "".join(c for c in title.replace(" ", "-") if c.isalnum() or c in "-_")


def _as_markdown(name: str, answers: Sequence[Answer]) -> str:
    """The table in the paper's layout, without rows of which nothing has been run."""
    known = recipe(name)
    rows, columns = layout(known, answers)
    cells: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    run = set()
    for answer in answers:
        at = place(known.rows, answer), place(known.columns, answer)
        cells.setdefault(at, []).append(cell(answer))
        run |= {at[0]} if answer["status"] not in ("not run",) and "why" not in answer else set()
    titles = [", ".join(word for word in column if word) or "ours (published, difference)" for column in columns]
    lines: list[dict[str, object]] = [
        {
            **dict(zip(known.rows, row, strict=True)),
            **{title: " / ".join(cells.get((row, at), [""])) for title, at in zip(titles, columns, strict=True)},
        }
        for row in rows
        if row in run
    ]
    return markdown(lines or [{"nothing run": ""}])


def claims_page(tables: Mapping[str, Sequence[Answer]], own: Sequence[Answer] = ()) -> str:
    """The text of claims.md; of tables that have not been run it has the published numbers. `own`: answers of settings
    of our own, of which the papers have no numbers."""
    return page_of_claims(_with_blanks(tables, own))


def _with_blanks(tables: Mapping[str, Sequence[Answer]], own: Sequence[Answer]) -> dict[str, Sequence[Answer]]:
    return {**{name: tables.get(name) or blank(name) for name in names()}, OWN: own}


def shown(folder: Path) -> dict[str, list[Answer]]:
    """What the pages show of the tables: not the lines that try something out, which have a page of their own."""
    return {name: [a for a in found if not a["variant"].startswith(TRIED)] for name, found in read(folder).items()}


def write(folder: Path = FOLDER) -> None:
    tables = shown(folder)
    folder.mkdir(parents=True, exist_ok=True)
    own = own_answers(records.read(folder.parent / "pretrained"))
    draw(tables, folder)
    (folder / "README.md").write_text(plain_lines(overview(tables, own)), encoding="utf-8")
    if tried := page_of_tried(folder):
        (folder / "fedrod.md").write_text(tried, encoding="utf-8")
    (folder / "claims.md").write_text(plain_lines(claims_page(tables, own)), encoding="utf-8")


def plain_lines(text: str) -> str:
    """The text without references to the specification, which are for readers of the code."""
    return "\n".join(plain(line) if "(spec" in line else line for line in text.splitlines()) + "\n"
