"""The list that `torso papers` prints."""

from __future__ import annotations

from typing import Any

from torso.papers.estimate import Rate, rate_of, seconds
from torso.papers.plan import plan
from torso.papers.published import names, recipe


def list_tables(device: str) -> tuple[list[dict[str, Any]], Rate]:
    """A row a table: data, networks, numbers, runs of one seed, time here, what cannot be run and why."""
    rate = rate_of(device)
    rows = []
    for name in names():
        known = recipe(name)
        made = plan(known)
        there = [made.lines[i].record for i in {i for run in made.runs for i in run.answers}] or list(known.records)
        rows.append(
            {
                "table": name,
                "data": ", ".join(sorted({record.dataset for record in there})),
                "network": ", ".join(sorted({record.model for record in there})),
                "numbers": len(known.records),
                "runs": len(made.runs),
                "time": said(seconds(made.runs, rate)) if made.runs else "–",
                "cannot_run": ", ".join(f"{count}: {reason}" for reason, count in made.refused.items()),
                "title": known.title,
            }
        )
    return rows, rate


def said(seconds: float) -> str:
    """About: 40 s, 12 min, 3.5 h, 4 days."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def said_of_rate(rate: Rate) -> str:
    how = "rates measured at bf16" if rate.known else "one second of steps of conv4, scaled by operations"
    return f"time: an estimate for one seed on {rate.device} ({how}); runs that several tables share train once"
