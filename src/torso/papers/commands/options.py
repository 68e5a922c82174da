"""Options and functions that the commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

Sets = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one key of every run.")]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the data sets; default: $TORSO_DATA, else ./data.")
]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of the runs; tables that use the same folder share training.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")]
Precision = Annotated[str, typer.Option(help="auto, fp32, tf32 or bf16.")]
Processes = Annotated[
    int, typer.Option(min=0, metavar="N", help="Share the runs among N processes. 0: as many as fill an accelerator.")
]


def said_sets(sets: Sequence[str], device: str, precision: str) -> list[str]:
    """The settings (KEY=VALUE) of --set, --device and --precision."""
    own = {"run.device": device, "run.precision": precision}
    return [*sets, *(f"{key}={value}" for key, value in own.items() if value)]


def note_on_sets(sets: Sequence[str]) -> str:
    """A note on what --set changes in the runs; empty if it changes only where and how they run."""
    keys = [said for said in sets if not said.strip().startswith(("run.", "data.root"))]
    return f"changed here: {', '.join(keys)}; these are not the numbers of the recipe" if keys else ""


def end(broken: Mapping[str, Exception]) -> NoReturn:
    """Print the runs that broke, and exit: with status 1 if there are any, else with 0."""
    for name, error in broken.items():
        Console(stderr=True).print(f"{name}: {type(error).__name__}: {error}", markup=False, highlight=False)
    raise typer.Exit(1 if broken else 0)


def widen_to(console: Console, table: Table) -> None:
    """If the output is a file, widen the console to the table, so that no cell is cut."""
    if not console.is_terminal:
        room = console.options.update_width(10_000)
        console.width = max(console.width, console.measure(table, options=room).maximum)
