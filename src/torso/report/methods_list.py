"""The list of methods for a terminal: one line each, grouped by paper; or a few lines each (--long)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import fill, shorten
from typing import Any

from rich.console import Console
from rich.text import Text

from torso.methods import methods
from torso.registry import plain
from torso.report.lists import list_methods

OTHERS = "Others: papers with one method"
_PAPERS = ("FedBABU", "Fed-RoD", "FedNCM", "FedFN")  # the four papers that Torso is about come first
_WIDEST = 120
_INDENTED: Any = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}


def print_methods(long: bool) -> None:
    """Print the list: short lines, or with `long` all that is known of each method."""
    console = Console()
    width = min(console.width, _WIDEST) if console.is_terminal else _WIDEST
    for line in (_long if long else _short)(width):
        console.print(line, soft_wrap=True, highlight=False)


def groups() -> list[tuple[str, list[str]]]:
    """(paper, its methods) in the order of the list. Papers with a single method form one group at the end."""
    by_paper = {paper: list(names) for paper, names in groupby(sorted(methods, key=_order), key=_paper)}
    several = [(paper, names) for paper, names in by_paper.items() if len(names) > 1]
    single = sorted(name for names in by_paper.values() if len(names) == 1 for name in names)
    return [*several, *([(OTHERS, single)] if single else [])]


def _paper(name: str) -> str:
    return methods[name].paper or "–"


def _order(name: str) -> tuple[int, str, str]:
    paper = _paper(name)
    rank = next((place for place, known in enumerate(_PAPERS) if paper.startswith(known)), len(_PAPERS))
    return rank, paper, name


def _short(width: int) -> Iterator[Text]:
    widest = max(map(len, methods))
    for paper, names in groups():
        yield Text(paper, "bold")
        for name in names:
            said = shorten(
                plain(methods[name].about), max(20, width - widest - 4), placeholder=" …", break_on_hyphens=False
            )
            yield Text.assemble("  ", (name.ljust(widest), "cyan"), "  ", said)
    yield Text("Details: torso methods show NAME. Details of all: torso methods --long")


def _long(width: int) -> Iterator[Text]:
    rows = {row["name"]: row for row in list_methods()}
    for _, names in groups():
        for name in names:
            yield Text.assemble((name, "bold cyan"), f"  {rows[name]['paper']}")
            yield from (Text(fill(line, width, **_INDENTED)) for line in _details(rows[name]))
    yield Text("kB: per participant and round, on 4convNet with 10 classes.")


def _details(row: Mapping[str, Any]) -> Sequence[str]:
    differs = (
        "It is FedAvg." if row["differs_from_fedavg"] == "–" else f"Differs from FedAvg: {row['differs_from_fedavg']}"
    )
    size = f"{row['bytes_down'] / 1000:.0f} kB down, {row['bytes_up'] / 1000:.0f} kB up"
    travels = f"Travels: {row['travels']} ({size}). A client keeps: {row['client_keeps']}."
    return row["about"], differs, travels
