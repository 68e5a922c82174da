"""The command `torso leaderboard`: parse, call, print."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

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
from torso.plugins import Plugins, load_plugins
from torso.report.options import Json, Quiet
from torso.report.watching import watching

if TYPE_CHECKING:
    from torso.papers.board.combinations import Combination
    from torso.papers.board.contestants import Contestant
    from torso.papers.board.trials import BoardMethod, BoardPlan

    Candidate = tuple[str, BoardMethod, Combination | None]

Part = Annotated[str, typer.Option(help="Part of the board: 'setting=cifar10-s2,method=fedbabu|fedavg'.")]
Seeds = Annotated[int, typer.Option(min=1, help="Judge everything with this many seeds.")]
Find = Annotated[bool, typer.Option("--search", help="Try new combinations of axes instead, on validation data alone.")]
GoOn = Annotated[
    bool, typer.Option("--go-on", help="Count published runs of the same config as run, and run only what is missing.")
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Count the runs, estimate the time and run nothing.")]


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(leaderboard)


def leaderboard(
    only: Part = "",
    seeds: Seeds = 3,
    data_root: Root = None,
    out: Out = Path("runs/papers"),
    sets: Sets = [],  # noqa: B006  typer copies it
    device: Device = "",
    precision: Precision = "",
    processes: Processes = 0,
    plugin: Plugins = [],  # noqa: B006
    search: Find = False,
    go_on: GoOn = False,
    dry_run: Dry = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every method with the same budget and rank them; learning rates are chosen on validation data.

    The same command continues where it stopped.

    Methods that a plugin registers compete with the others.

    The published rows of the leaderboard are shown beside yours, unless a --set changes what is run."""
    from torso.papers.board.combinations import combinations
    from torso.papers.board.definition import load
    from torso.papers.board.leaderboard import run_leaderboard
    from torso.papers.board.published import beside, read
    from torso.papers.board.runs import BoardRuns
    from torso.papers.board.search import run_search
    from torso.papers.board.trials import BoardPlan
    from torso.papers.commands.progress import TableBar, TableLines
    from torso.parallel.hire import pool, processes_for

    load_plugins(plugin)
    plan = BoardPlan(load(), tuple(said_sets(sets, device, precision)))
    space = combinations(plan) if search else []
    whole = _search_candidates(plan, space) if search else _board_candidates(plan, out, only)
    chosen = _contestants(plan, _selected(whole, only), data_root, dry_run)
    if dry_run:
        _tell(chosen, 0 if search else seeds, device, as_json)
        return
    there = read()
    published = there["board"]
    with watching(quiet, shown=(TableBar, TableLines)) as (listener, stop), ExitStack() as stack:
        run = chosen[0].tuning[0].config.run
        share = processes or processes_for(run)
        hire = cache(lambda: stack.enter_context(pool(run, share)))
        workers = (run.ray.workers or 4) if run.engine == "ray" else share
        # a family makes about two packs: twice as many families as workers keep all processes busy
        runs = BoardRuns(out, listener, stop, hire, 2 * workers if workers > 1 else 1)
        if search:
            found = run_search(chosen, space, runs)
        else:
            everywhere = _board_candidates(plan, out, "setting")
            known = {(setting, entry.name) for setting, entry, _ in everywhere}
            rows = run_leaderboard(chosen, runs, seeds, known, *((published, there["tuned"]) if go_on else ()))
            rows += [] if note_on_sets(sets) else beside(rows, published)
    if as_json:
        print(json.dumps(found if search else rows))
    elif search:
        _print_search(found)
    else:
        _print_board(rows, sets)
    end(runs.broken)


def _board_candidates(plan: BoardPlan, out: Path, only: str) -> list[Candidate]:
    """The methods of the board in its settings: presets, methods of plugins, and combinations that an earlier search
    below `out` has entered. Separate settings are included if `only` selects by setting."""
    from torso.papers.board.definition import NAME
    from torso.papers.board.search import entered_methods, read_found
    from torso.papers.board.trials import later_presets, plugin_methods, presets

    board, named = plan.board, re.split(r"[=|,\s]+", only)
    others = [*plugin_methods(board), *entered_methods(read_found(out / NAME))]
    apart = board.later if "setting" in named else ()
    later = [(setting, [*later_presets(board, setting), *others]) for setting in apart]
    return [
        *((setting, entry, None) for entry in (*presets(board), *others) for setting in board.settings),
        *((setting, entry, None) for setting, entries in later for entry in entries),
    ]


def _search_candidates(plan: BoardPlan, space: Sequence[Combination]) -> list[Candidate]:
    """The combinations of the search space in the search's settings."""
    there = [one for one in space if not one.refused]
    return [(setting, one.entry, one) for one in there for setting in plan.board.search.settings]


def _selected(whole: Sequence[Candidate], only: str) -> list[Candidate]:
    """The candidates that --only selects."""
    from torso.papers.experiments.selection import select

    def values(candidate: Candidate, key: str) -> tuple[str, ...]:
        setting, entry, one = candidate
        known = {"setting": setting, "method": entry.name, **(one.axes if one else {})}
        return (known[key],) if key in known else ()

    axes = dict.fromkeys(axis for _, _, one in whole if one for axis in one.axes)
    places = select(only, whole, values, "the leaderboard", ", ".join(["setting", "method", *axes]))
    return [whole[place] for place in places]


def _contestants(
    plan: BoardPlan, candidates: Sequence[Candidate], root: Path | None, dry_run: bool
) -> list[Contestant]:
    """The contestants, with the folders of their data. Raises a RequestError if data are missing, except with
    `dry_run`."""
    from torso.papers.board.contestants import Contestant
    from torso.papers.board.trials import BoardPlan
    from torso.papers.experiments.datasets import roots_for
    from torso.runs.devices import device_of

    configs = [plan.config(setting, entry, {}) for setting, entry, _ in candidates]
    device_of(configs[0].run)
    placed = BoardPlan(plan.board, plan.sets, roots_for(configs, root, missing=dry_run))
    return [Contestant(placed, *candidate) for candidate in candidates]


def _tell(chosen: Sequence[Contestant], seeds: int, device: str, as_json: bool) -> None:
    """Print how many runs there are, and an estimate of their time."""
    from torso.papers.experiments.estimate import duration, rate_of, seconds
    from torso.papers.experiments.reuse import training_key
    from torso.report.summary import counted

    choosing = [trial for one in chosen for trial in one.tuning]
    judged = [trial for one in chosen for trial in one.stand_ins(seeds)]
    runs = [*choosing, *judged]
    rate = rate_of(device or "auto")
    trainings = len({training_key(run.config) for run in runs})
    told: dict[str, Any] = {
        "contestants": len(chosen),
        "choosing": len(choosing),
        "judged": len(judged),
        "trainings": trainings,
        "measurements": len(runs) - trainings,
        "seconds": round(seconds(runs, rate), 1),
        "device": rate.device,
    }
    if as_json:
        print(json.dumps({**told, "runs": [run.name for run in choosing]}))
        return
    judging = f", {counted(len(judged), 'run')} on test data at {counted(seeds, 'seed')} to be judged" if seeds else ""
    print(
        f"{counted(len(chosen), 'contestant')} (a method in a setting): {counted(len(choosing), 'run')} on validation "
        f"data to choose rates{judging}\n"
        f"{counted(trainings, 'training')}, {counted(told['measurements'], 'more measurement')} of a trained model, "
        "and more runs where the best rate is the smallest or the largest of the grid\n"
        f"about {duration(told['seconds'])} on {rate.device}, within a factor of two; what is finished is not run again"
    )


def _print_board(rows: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> None:
    from torso.papers.board.published import MARK, marked, origins, worth_showing
    from torso.papers.board.standings import in_setting, line, overall, spoken_point, view
    from torso.report.summary import counted

    console = Console()
    settings = list(dict.fromkeys(str(row["setting"]) for row in rows))
    for setting in settings:
        there = in_setting(rows, setting)
        shown = worth_showing(there)
        table = view([{**line(row, there), **marked(row), "chosen": spoken_point(row["chosen"])} for row in shown])
        widen_to(console, table)
        console.print(f"[bold]{setting}[/bold]", highlight=False)
        console.print(table, highlight=False)
        if more := len(there) - len(shown):
            console.print(f"and {counted(more, 'published method')} more: --json has all", highlight=False)
    places = overall(rows, settings)
    if len(settings) > 1 and places:
        console.print("[bold]mean place over these settings[/bold]")
        console.print(view(places), highlight=False)
    said = "accuracy in %, mean ± std over seeds; worst tenth: of the clients' own models; to best: difference to the "
    console.print(
        f"{said}best known of these (new combinations left out), paired by seed",
        highlight=False,
        soft_wrap=True,
    )
    if said := origins(rows):
        console.print(f"{MARK} published with Torso, of {said}", highlight=False, soft_wrap=True)
    if told := note_on_sets(sets):
        console.print(told, markup=False, highlight=False, soft_wrap=True)


def _print_search(found: Mapping[str, Any]) -> None:
    from torso.papers.board.standings import searched, view

    console = Console()
    table = view(searched(found))
    widen_to(console, table)
    console.print("[bold]tried on validation data[/bold]: generic + personalised, at the best point of the grid")
    console.print(table, highlight=False)
    for one in found["refused"]:
        console.print(f"refused: {one['method']}: {one['why']}", markup=False, highlight=False, soft_wrap=True)
    entered = ", ".join(str(row["name"]) for row in found["entered"])
    rest = f"{found['left']} combinations in a setting are left to try, so that nothing is entered yet"
    said = f"entered: {entered or 'none'}; `torso leaderboard` runs them with the others" if found["complete"] else rest
    console.print(said, markup=False, highlight=False, soft_wrap=True)
