"""The list that `torso papers` prints."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torso.papers.experiments.estimate import Rate, duration, rate_of, seconds
from torso.papers.tables.plan import plan
from torso.papers.tables.published import names, recipe
from torso.papers.tables.settings import REASONS


def list_tables(device: str) -> tuple[list[dict[str, Any]], Rate]:
    """A row for each table (data, networks, numbers, runs of one seed, time, what cannot be run), and the rate of the
    device."""
    rate = rate_of(device)
    rows = []
    for name in names():
        known = recipe(name)
        made = plan(known, tried=False)
        answered = {place for run in made.runs for place in run.answers}
        there = [made.lines[place].published for place in answered] or list(known.numbers)
        rows.append(
            {
                "table": name,
                "data": ", ".join(sorted({number.dataset for number in there})),
                "network": ", ".join(sorted({number.model for number in there})),
                "numbers": len(known.numbers),
                "runs": len(made.runs),
                "seconds": round(seconds(made.runs, rate), 1),
                "cannot_run": made.refused,
                "title": known.title,
            }
        )
    return rows, rate


def print_tables(rows: list[dict[str, Any]], rate: Rate) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a file has no edge
    view = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    view.add_column("table", no_wrap=True)
    view.add_column("what")
    for name in ("numbers", "runs", "time"):
        view.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row["runs"]:
            out = "".join(f"; {count} cannot run: {reason}" for reason, count in row["cannot_run"].items())
            what = f"{row['data']}, {row['network']}: {row['title']}{out}"
            view.add_row(row["table"], escape(what), str(row["numbers"]), str(row["runs"]), duration(row["seconds"]))
    console.print(view)
    for row in rows:
        if not row["runs"]:
            reason = next(iter(row["cannot_run"]))
            console.print(f"{row['table']} cannot be run: {REASONS[reason]}", highlight=False, soft_wrap=True)
    console.print(rate_note(rate), highlight=False, soft_wrap=True)


def rate_note(rate: Rate) -> str:
    """A line on how the times were estimated."""
    how = "rates measured at bf16" if rate.known else "one second of steps of conv4, scaled by operations"
    return (
        f"time: an estimate for one seed on {rate.device} ({how}), within a factor of two if the device has no other "
        "work; runs that several tables share train once"
    )
