"""What commands print on the output stream: tables to read, or JSON for programs."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torso.report.comparison import Comparison
from torso.report.privacy import in_words
from torso.report.table import UNLIMITED_WIDTH, differences, fitted, rows_of, table

_UNITS = (
    "Accuracy in %: mean ± std over clients; generic: one model on the whole test set. Worst tenth: mean personalised "
    "accuracy of the worst 10 % of the clients. MB: sent in both directions."
)
_DIFFERENCES = (
    "Difference: percentage points [95% interval, Student], paired by client and averaged over seeds; generic: paired "
    "by seed."
)


def _console() -> Console:
    """A console for tables. A file or pipe has no width, so it gets at least 120 columns."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console


def print_comparison(comparison: Comparison, as_json: bool) -> None:
    """Print the table of runs that were read from their folders."""
    if as_json:
        print(json.dumps([dict(run.result) or {"method": run.method, "status": run.status} for run in comparison.runs]))
        return
    console = _console()
    console.print(fitted(rows_of(comparison), console))
    console.print(_UNITS, soft_wrap=True)
    print_differences(comparison)
    for note in comparison.notes():
        console.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)


def print_differences(comparison: Comparison) -> None:
    """Print the table of differences to the baseline, if there is another entry."""
    view = differences(comparison)
    if view is not None:
        console = _console()
        console.print(view)
        console.print(_DIFFERENCES, soft_wrap=True, highlight=False, markup=False)


def print_results(results: list[Any], as_json: bool, data: Any) -> None:
    """Print the table of runs that have just ended, with their folders; `data` instead if `as_json`."""
    if as_json:
        print(json.dumps(data))
        return
    console = _console()
    console.print(table(results, console))
    console.print(_UNITS, soft_wrap=True)
    for result in results:
        if not result.ok:
            hint = " (training diverged: try a smaller train.lr)" if "non-finite" in result.status else ""
            said = f"{result.method} seed {result.seed} {result.status}{hint}"
            console.print(said, style="red", soft_wrap=True, markup=False)
        if private := in_words(result.privacy):
            said = f"{result.method} seed {result.seed}: {private}"
            console.print(said, soft_wrap=True, highlight=False, markup=False)
        console.print(
            f"{result.method} seed {result.seed}: {result.folder}", soft_wrap=True, highlight=False, markup=False
        )


def print_list(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows with the same columns: as a table, or as blocks of lines if the terminal is too narrow for it."""
    if as_json:
        print(json.dumps(rows))
        return
    console, view = Console(), Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(rows[0]):
        view.add_column(column.replace("_", " "), overflow="fold", no_wrap=place == 0)  # names are not broken
    for row in rows:
        view.add_row(*(escape(str(value)) for value in row.values()))
    if Measurement.get(console, console.options.update(max_width=UNLIMITED_WIDTH), view).minimum <= console.width:
        console.print(view)
    else:
        _print_blocks(rows, console)


def _print_blocks(rows: list[dict[str, Any]], console: Console) -> None:
    """Print a block of lines for each row: its name, its longest cell, its other cells that say something."""
    for row in rows:
        (_, name), *others = ((column, str(value)) for column, value in row.items())
        longest = max(others, key=lambda cell: len(cell[1]), default=None)
        console.print(name, style="bold", highlight=False, markup=False)
        rest = [
            f"{column.replace('_', ' ')} {value}"
            for column, value in others
            if value != "–" and (column, value) != longest
        ]
        for line in filter(None, [longest[1] if longest else "", "; ".join(rest)]):
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
