"""The pages in docs/reproduction: README.md with every table beside its published numbers, claims.md, fedrod.md."""

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
    """The text of README.md: what came out at a glance, a review of every table, and the tables. `own`: as in
    `claims_page`."""
    lines = [
        "# What was run",
        "",
        "We ran tables of four papers again with Torso. [The papers' tables](../reproduction.md) says how to run one, "
        "and why some numbers differ.",
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
    """The tables of a paper. Notes of several tables come once, before them."""
    notes_of = {name: notes(recipe(name), answers) for name, answers in tables.items()}
    times = Counter(note for some in notes_of.values() for note in some)
    shared = [note for note, count in times.items() if count > 1]
    lines = [f"## {paper}", "", *(f"- {note}" for note in shared), ""] if tables else []
    for name, answers in tables.items():
        lines += [f"### {name}: {recipe(name).title}", "", _as_markdown(name, answers), ""]
        lines += [*(f"- {note}" for note in notes_of[name] if note not in shared), ""]
    return lines


def _out_of_reach() -> list[str]:
    """The section on published numbers that cannot be run here, and why."""
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
    text = f"Of {total} published numbers, {total - missing} can be run. Unreadable cells of the papers do not count."
    return ["## What cannot be run", "", text, "", markdown(rows), ""]


def _of_runs(tables: Mapping[str, Sequence[Answer]]) -> list[str]:
    """A list of the machines, versions, seeds and data of the results."""
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
    """A sentence on what is recorded of a number, and what is not."""
    summed = sum("sha256" in answer for answer in run)
    return (
        "The json file of a table has the config, seeds, versions and machine of every number. The SHA-256 of data and "
        f"final models was added later: {summed} of {len(run)} numbers have it. For the others it is not known, nor is "
        "the commit of Torso. [What is promised](../reproduction.md#same-bits)."
    )


def _legend() -> list[str]:
    return [
        "The columns:",
        "",
        "- **near**: how many numbers lie within 3 points of the paper, of those that can be compared. Training that "
        "diverged is not near.",
        "- **within the error**: how many numbers lie within Student's 95 % interval, of those with several seeds. It "
        "is the interval of ours minus published, and it counts the spread of both over seeds. FedBABU and FedFN give "
        "only a spread over the clients of one run; there we assume our own spread over seeds. With three seeds "
        "against one run the interval is five standard deviations wide on either side. So a number within it says "
        "little, and a number outside it says much.",
        "- **difference**: the mean of ours minus published, in points.",
        "- **order**: the rank correlation of the methods (or options) with the paper's, averaged over settings with "
        "three or more of them. Difference and order leave out what diverged at any seed.",
        "- **variants near**: variants count in no other column. If a variant is near and the main runs of the same "
        "numbers are not, the paper's numbers were probably made in the way of the variant.",
        "",
        "A cell of the tables below is ours (published, difference), in %. –: not run. ✗: training diverged or failed, "
        "at all seeds or at the number of seeds given. The mean is then over the other seeds.",
        "",
        "Some numbers appear in several tables. If only one table has run a number, the others show its result (`from` "
        "in the json file). If several have run it, each shows its own. On an accelerator two trainings of one config "
        "and seed are equal only to rounding.",
    ]


def _row(name: str, answers: Sequence[Answer]) -> dict[str, object]:
    found = review(answers)
    failed = f" ({found.diverged} diverged)" if found.diverged else ""
    variants = []
    for variant in found.second:
        main = "" if variant.first is None else f" (main runs: {variant.first})"
        variants.append(f"{variant.name}: {variant.near} of {variant.there}{main}")
    return {
        "table": f"[{name}](#{_anchor(name)})",
        "numbers run": f"{found.measured} of {found.numbers}{failed}",
        "near": f"{found.near[0]} of {found.near[1]}" if found.near[1] else "–",
        "within the error": f"{found.within[0]} of {found.within[1]}" if found.within[1] else "–",
        "difference": "–" if math.isnan(found.offset) else f"{found.offset:+.1f}",
        "order": "–" if math.isnan(found.order) else f"{found.order:.2f} ({counted(found.settings, 'setting')})",
        "variants near": "; ".join(variants) or "–",
    }


def _anchor(name: str) -> str:
    """The anchor that GitHub gives to the heading of a table."""
    title = f"{name}: {recipe(name).title}".lower()
    return "".join(c for c in title.replace(" ", "-") if c.isalnum() or c in "-_")


def _as_markdown(name: str, answers: Sequence[Answer]) -> str:
    """The table in the paper's layout, without the rows in which nothing has been run."""
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
    """The text of claims.md. It shows the published numbers of all tables, run or not. `own`: answers in settings of
    our own, for which the papers have no numbers."""
    return page_of_claims(_with_blanks(tables, own))


def _with_blanks(tables: Mapping[str, Sequence[Answer]], own: Sequence[Answer]) -> dict[str, Sequence[Answer]]:
    """All tables: those that have not been run have answers without our numbers."""
    return {**{name: tables.get(name) or blank(name) for name in names()}, OWN: own}


def shown(folder: Path) -> dict[str, list[Answer]]:
    """Table → the answers that the pages show. Answers of trials (`tried` in a recipe) have their own page."""
    return {name: [a for a in found if not a["variant"].startswith(TRIED)] for name, found in read(folder).items()}


def write(folder: Path = FOLDER) -> None:
    """Write the pages and the pictures."""
    tables = shown(folder)
    folder.mkdir(parents=True, exist_ok=True)
    own = own_answers(records.read(folder.parent / "pretrained"))
    draw(tables, folder)
    (folder / "README.md").write_text(plain_lines(overview(tables, own)), encoding="utf-8")
    if tried := page_of_tried(folder):
        (folder / "fedrod.md").write_text(tried, encoding="utf-8")
    (folder / "claims.md").write_text(plain_lines(claims_page(tables, own)), encoding="utf-8")


def plain_lines(text: str) -> str:
    """The text without citations of the specification, which are for readers of the code."""
    return "\n".join(plain(line) if "(spec" in line else line for line in text.splitlines()) + "\n"
