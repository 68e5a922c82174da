"""The commands `torso papers` and `torso reproduce`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from torso.errors import RequestError
from torso.papers.commands.options import (
    Device,
    Out,
    Precision,
    Processes,
    Root,
    Sets,
    end,
    note_on_sets,
    said_sets,
    widen_to,
)
from torso.report.options import Json, Quiet
from torso.report.watching import watching

if TYPE_CHECKING:
    from torso.papers.tables.plan import TablePlan

Only = Annotated[str, typer.Option(help="Part of the table: 'shards=2,method=fedbabu|fedavg'.")]
Seeds = Annotated[int, typer.Option(min=1, help="Run everything with this many seeds.")]
Report = Annotated[bool, typer.Option("--report", help="Also write table.html and report.html beside table.json.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show the configs and run nothing.")]
Verify = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Run random cells of these results again and compare.")
]
Sample = Annotated[int, typer.Option(min=1, metavar="N", help="With --verify: how many cells.")]
Minutes = Annotated[float, typer.Option(min=0.01, help="With --verify: leave out runs that take longer.")]
Draw = Annotated[int, typer.Option(min=-1, help="With --verify: the seed of the draw; -1: a new one each time.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(papers)
    app.command()(reproduce)


def papers(device: Device = "auto", as_json: Json = False) -> None:
    """List the tables of the four papers: data, number of runs, estimated time here, what cannot be run."""
    from torso.papers.pages.listing import list_tables, print_tables

    rows, rate = list_tables(device)
    if as_json:
        print(json.dumps(rows))
    else:
        print_tables(rows, rate)


def reproduce(
    table: Annotated[str, typer.Argument(metavar="PAPER/TABLE", help="Such as fedbabu/13; see torso papers.")] = "",
    only: Only = "",
    seeds: Seeds = 1,
    data_root: Root = None,
    out: Out = Path("runs/papers"),
    sets: Sets = [],  # noqa: B006  typer copies it
    device: Device = "",
    precision: Precision = "",
    processes: Processes = 0,
    report: Report = False,
    dry_run: Dry = False,
    verify: Verify = None,
    sample: Sample = 20,
    minutes: Minutes = 5.0,
    draw: Draw = -1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a table of a paper and print our numbers beside the published ones.

    The same command continues where it stopped. With --verify, run random cells of published results again."""
    if verify is not None:
        _verify(verify, sample, data_root, device, minutes, draw, as_json)
        return
    if not table:
        raise RequestError(
            "torso reproduce needs PAPER/TABLE, such as fedbabu/13 (see `torso papers`), or --verify DIR"
        )
    from torso.papers.tables.published import recipe

    said = said_sets(sets, device, precision)
    made = _planned(recipe(table).name, only, seeds, said, data_root, dry_run)
    if dry_run:
        _show_configs(made, as_json)
        return
    from torso.papers.commands.progress import TableBar, TableLines
    from torso.papers.tables.reproduce import reproduce as run_table
    from torso.parallel.hire import processes_for

    with watching(quiet, shown=(TableBar, TableLines)) as (listener, stop):
        whole = _whole(made, out, said, data_root)
        count = processes or processes_for(made.runs[0].config.run)
        done = run_table(made, out, whole=whole, listener=listener, stop=stop, processes=count)
    if as_json:
        print(json.dumps(done.answers))
    else:
        _print_table(Console(), made, done.answers, sets)
    if report:
        _write_pages(made, done.folder, done.answers, sets)
    end(done.broken)


def _verify(
    folder: Path, sample: int, root: Path | None, device: str, minutes: float, draw: int, as_json: bool
) -> None:
    """Verify results and print a line for each cell. Exit with status 1 if a cell differs."""
    import random
    from dataclasses import asdict

    from torso.papers.certified.verify import verify
    from torso.papers.experiments.datasets import data_root

    if not folder.is_dir():
        raise RequestError(f"--verify {str(folder)!r} is not a folder. Expected: results such as docs/reproduction")
    number = random.SystemRandom().randrange(10**6) if draw < 0 else draw
    found = verify(folder, sample, root=data_root(root), device=device or "auto", minutes=minutes, draw=number)
    if as_json:
        print(json.dumps({"draw": found.draw, "left": found.left, "cells": [asdict(one) for one in found.outcomes]}))
    else:
        for one in found.outcomes:
            said = f"DIFFERS: {one.wrong}" if one.wrong else f"ok, {one.how}"
            print(f"{one.name}: {one.recorded} recorded, {one.now} now: {said}")
        left = "".join(f"; {count} drawn and left out: {why}" for why, count in found.left.items())
        agree = sum(not one.wrong for one in found.outcomes)
        print(f"{agree} of {len(found.outcomes)} cells agree (--draw {found.draw}){left}")
    raise typer.Exit(0 if found.ok else 1)


def _planned(table: str, only: str, seeds: int, sets: list[str], root: Path | None, dry_run: bool) -> TablePlan:
    """The plan of a table, with the folders of its data. Raises a RequestError if nothing of it can be run."""
    from torso.papers.experiments.datasets import roots_for
    from torso.papers.tables.plan import plan
    from torso.papers.tables.published import recipe
    from torso.papers.tables.settings import REASONS
    from torso.runs.devices import device_of

    tried = "variant=" in only.replace(" ", "")  # trials are run only if --only names a variant
    made = plan(recipe(table), only, seeds, sets, tried=tried)
    if not made.runs:
        why = "; ".join(f"{count} × {REASONS[reason]}" for reason, count in made.refused.items())
        raise RequestError(f"nothing of {table} can be run: {why}. `torso papers` lists what can.")
    device_of(made.runs[0].config.run)
    roots = roots_for([run.config for run in made.runs], root, missing=dry_run)
    return plan(recipe(table), only, seeds, sets, roots, tried) if roots else made


def _whole(made: TablePlan, out: Path, sets: list[str], root: Path | None) -> TablePlan:
    """The plan without --only, with the seeds that earlier commands have left in the table's folder."""
    from torso.papers.experiments.datasets import data_root, known_roots
    from torso.papers.tables.plan import plan

    folder = out / made.recipe.name.replace("/", "-")
    seeds = [path.name.rpartition("-seed")[2] for path in folder.glob("*-seed*") if path.is_dir()]
    there = [int(seed) for seed in seeds if seed.isdecimal()]
    last = max([run.seed for run in made.runs] + there)
    first = min(run.seed for run in made.runs)
    return plan(made.recipe, "", last - first + 1, sets, known_roots(data_root(root)))


def _write_pages(made: TablePlan, folder: Path, answers: list[dict[str, object]], sets: list[str]) -> None:
    """Write table.html, the printed table, and report.html, the comparison of its runs."""
    from io import StringIO

    from torso.report.write import report

    recorded = Console(record=True, file=StringIO())
    _print_table(recorded, made, answers, sets)
    recorded.save_html(str(folder / "table.html"))
    report([folder], folder / "report.html", None, f"torso reproduce {made.recipe.name}")
    said = f"{folder / 'table.html'} and {folder / 'report.html'}: open them in a browser"
    Console(stderr=True).print(said, highlight=False, soft_wrap=True)


def _show_configs(made: TablePlan, as_json: bool) -> None:
    if as_json:
        print(json.dumps({run.name: run.config.as_tree() for run in made.runs}, indent=1))
        return
    from torso.report.summary import counted

    for run in made.runs:
        print(f"# {run.name}\n{run.config.as_toml()}")
    print(f"# {counted(len(made.runs), 'run')} of {made.recipe.name}: {made.recipe.title}")


def _print_table(console: Console, made: TablePlan, answers: list[dict[str, object]], sets: list[str]) -> None:
    from torso.papers.pages.table import notes, view

    recipe = made.recipe
    table = view(recipe, answers)
    widen_to(console, table)
    title = f"[bold]{recipe.name}[/bold]  {recipe.title}: ours (published, difference)"
    console.print(title, highlight=False, soft_wrap=True)
    console.print(table, highlight=False)
    for note in [*filter(None, [note_on_sets(sets)]), *notes(recipe, answers)]:
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
