"""docs/leaderboard.md, made from the published board: `python -m torso.papers.docs [OUT]`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.papers.board.definition import CHOOSES, NAME, Board, load
from torso.papers.board.glance import sentence
from torso.papers.board.published import FILE, merged, read
from torso.papers.board.published import write as publish
from torso.papers.board.rows import BOARD, empty_row, key_of
from torso.papers.board.search import read_found
from torso.papers.board.standings import (
    RANKED,
    TITLES,
    in_setting,
    judged,
    line,
    name_of,
    overall,
    searched,
    spoken_point,
    untried,
)
from torso.papers.board.trials import later_presets, presets
from torso.papers.board.verdict import answer, best_section, mark, usual_machine, where
from torso.papers.experiments.datasets import caveats_of
from torso.papers.experiments.provenance import machines_and_versions
from torso.papers.pages.leaderboard_picture import picture
from torso.report.docs import table as markdown
from torso.report.summary import listed

PAGE, PICTURE = "leaderboard.md", "leaderboard.svg"
ABOUT = "Personal against generic accuracy of every method, in every setting"
Rows = Sequence[Mapping[str, Any]]
MEANS = "A place compares means, and many means do not differ clearly."
NOTHING = "**No results yet.** Nothing of the board has been run."

LEGEND = [
    "How to read the tables below. Accuracy is in %, mean ± standard deviation over seeds. The best personal accuracy "
    "comes first.",
    "",
    "- **personal**: the client's own model on its own test data.",
    "- **generic**: one model on the whole test set.",
    "- **to best**: the difference to the best known method, paired by seed, with its standard error. With three seeds "
    "a difference is clear above 4.3 standard errors. Combinations that the search found are not known methods.",
    "- **new client**: clients that never trained, after and before they train for themselves.",
    "- **worst tenth**: the mean of the worst tenth of the clients, with their own models.",
    "- **MB**: bytes of the whole run, in both directions. **passes**: forward passes of one sample.",
]


def collect(out: Path, file: Path = FILE) -> bool:
    """Add the board and the search below `out` to the published ones: a row that has been judged replaces the old one.

    Returns False if there is nothing below `out`."""
    path = out / NAME / BOARD
    found = read_found(out / NAME)
    if not path.is_file() and not found:
        return False
    rows = json.loads(path.read_text("utf-8")) if path.is_file() else []
    now = merged(read(file), rows)
    publish(file, now["board"], found or now["search"], now["tuned"])
    return True


def page(data: Mapping[str, Any], board: Board | None = None) -> str:
    """The text of the page. `data`: the published board and search (`board/published.py`)."""
    board = board or load()
    found = data["search"]
    every = [*data["board"], *_not_run(data["board"], board)]
    run = [row for row in every if row["seeds"]]
    rows = [row for row in every if row["setting"] in board.settings]
    more = [row for row in every if row["setting"] in board.later]
    return "\n".join(
        [
            "# The leaderboard",
            "",
            f"Which method is best if all have the same budget? {board.title}.",
            "",
            "- **Equal**: rounds, participants, local epochs, batches and the grid of training rates.",
            "- **Not equal**: how clients get their own models ([caveats](#caveats)).",
            "- **Rates** are chosen on validation data. The numbers are measured on test data.",
            *_more(more),
            "",
            *(
                [*_glance(every, board), *answer(rows, found, board), *_results(rows, board), *_beside(more, board)]
                if run
                else [NOTHING, ""]
            ),
            *_search(found, board),
            *_choices(every, board),
            *_rules(board, {str(row["setting"]) for row in judged(more)}),
            *_made(run),
        ]
    )


def _more(rows: Rows) -> list[str]:
    """A line on the separate settings that have numbers."""
    names = dict.fromkeys(f"[{row['setting']}](#{row['setting']})" for row in judged(rows))
    return [f"- **Separate**, with another network and other rounds: {listed(list(names))}."] if names else []


def _glance(rows: Rows, board: Board) -> list[str]:
    """The section with the picture and a few sentences on each setting."""
    return [
        "## At a glance",
        "",
        f"![{ABOUT}]({PICTURE})",
        "",
        "Each dot is a method. Its area grows with the bytes that the method sends. Orange dots were found by the "
        "search, the green one is FedAvg, blue ones are the best or among the best in both accuracies. Names stand at "
        "FedAvg, at the best, and where there is room. "
        "Methods far below are not drawn.",
        "",
        "A method is *level* with the best, or *among the best*, if the 95 % interval of the difference over seeds "
        "contains zero.",
        "",
        *(f"- {sentence(setting, there)}" for setting, there in _by_setting(rows, board).items()),
        "",
    ]


def _by_setting(rows: Rows, board: Board) -> dict[str, Rows]:
    """Setting → its rows, for the settings in which a method has finished; separate settings last."""
    found = {name: in_setting(rows, name) for name in (*board.settings, *board.later)}
    return {name: there for name, there in found.items() if judged(there)}


def _not_run(rows: Rows, board: Board) -> list[Mapping[str, Any]]:
    """Empty rows for methods of leaderboard.toml that are not published yet, so that readers see what is missing."""
    there = {key_of(row) for row in rows}
    waiting = [(setting, entry) for entry in presets(board) for setting in board.settings]
    return [empty_row(setting, entry) for setting, entry in waiting if (setting, entry.name) not in there]


def _results(rows: Rows, board: Board) -> list[str]:
    """The sections on the best methods, on the places over all settings, and on each setting."""
    settings = list(_by_setting(rows, board))
    usual = usual_machine(rows)
    odd = {str(row["method"]) for row in rows if mark(row, usual)}
    said = [*best_section(rows, settings), "## Over all settings", ""]
    places = overall(rows, settings)
    if places:
        said += [f"The mean place over {listed(settings)}; 1 is the best. Sorted by the sum of the three. {MEANS}", ""]
        table: list[dict[str, object]] = [
            {"method": name_of(row) + " †" * (row["method"] in odd), **{TITLES[c]: f"{row[c]:g}" for c in RANKED}}
            for row in places
        ]
        said += [markdown(table), ""]
    whole = {str(row["method"]) for row in places}
    missing = list(dict.fromkeys(str(row["method"]) for row in rows if row["method"] not in whole))
    if missing:
        said += [f"Without a place in one of these settings: {', '.join(missing)}.", ""]
    others = [f"- **†**: run on {listed(_elsewhere(rows, usual))}. The other rows ran on {usual}."] if odd else []
    said += [*LEGEND, *others, ""]
    for setting in settings:
        there = in_setting(rows, setting)
        lines = [{**line(row, there), "method": name_of(row) + mark(row, usual)} for row in there]
        said += [f"## {setting}", "", markdown(lines), ""]
    return said


def _beside(rows: Rows, board: Board) -> list[str]:
    """The sections on separate settings, which do not count in the places over all settings."""
    said: list[str] = []
    for setting, there in _by_setting(rows, board).items():
        about, measured = board.later[setting], {str(row["method"]) for row in judged(there)}
        missing = [entry.name for entry in later_presets(board, setting) if entry.name not in measured]
        left = [f"{name}: {why}" for name, why in about.without.items()]
        said += [f"## {setting}", "", f"{about.why} This setting does not count in the places over all settings.", ""]
        said += [f"Without a number here: {', '.join(missing)}.", ""] if missing else []
        said += [f"Cannot compete here: {'; '.join(left)}.", ""] if left else []
        said += [markdown([{**line(row, there), "method": name_of(row)} for row in there]), ""]
    return said


def _elsewhere(rows: Rows, usual: str) -> list[str]:
    """The machines and precisions of the rows that did not run on the usual machine."""
    return list(dict.fromkeys(where(row) for row in rows if mark(row, usual)))


def _search(found: Mapping[str, Any], board: Board) -> list[str]:
    """The section on the search for new combinations."""
    said = ["## What was tried in the search", ""]
    axes = [" × ".join("/".join(choices) for choices in space.axes.values()) for space in board.search.spaces]
    said += [
        f"The search tries combinations of choices in {listed(board.search.settings)}, on validation data alone and "
        f"each with the whole grid: {'; '.join(axes)}. A combination is known if a preset makes the same choices. "
        "Their numbers (μ, hidden units) and the way in which clients get their own models may differ. The best "
        f"{board.search.best} combinations that are not known enter the board. The search does not see test data.",
        "",
    ]
    if not found:
        return [*said, "The search has not been run yet.", ""]
    if not found["complete"]:
        said += [f"The search is not complete ({found['left']} are left), so nothing has entered the board yet.", ""]
    said += [
        "A cell is generic + personalised accuracy at the best point of the grid, on validation data.",
        "",
        markdown(searched(found)),
        "",
    ]
    said += [f"- refused: {one['method']}: {one['why']}" for one in found["refused"]]
    return [*said, ""] if found["refused"] else said


def _choices(rows: Rows, board: Board) -> list[str]:
    """The section on the grid and the chosen points."""
    grid = "; ".join(f"{axis.key} of {_spoken(axis.values)}" for axis in board.grid)
    beyond = "; ".join(f"{axis.key} of {_spoken(axis.beyond)}" for axis in board.grid if axis.beyond)
    said = [
        "## The grid, and what was chosen",
        "",
        f"The grid: {grid}. Rates are chosen at seed 0, with a share of {board.validation:g} of every client's "
        f"training samples held out. The best point has the largest sum of "
        f"{listed([f'{name} accuracy' for name in CHOOSES])} on the held-out samples. A run that diverged counts as 0. "
        "A rate that a method does not use is not tried. If the best point has a neighbour that was not tried, the "
        f"neighbour is tried too, until there is none (beyond the grid: {beyond or 'nothing'}).",
        "",
    ]
    chosen: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["chosen"]:
            chosen.setdefault(str(row["method"]), {})[str(row["setting"])] = spoken_point(row["chosen"])
    if not chosen:
        return said
    beside = [name for name in board.later if any(name in there for there in chosen.values())]
    table: list[dict[str, object]] = [
        {"method": name, **{setting: there.get(setting, "–") for setting in (*board.settings, *beside)}}
        for name, there in chosen.items()
    ]
    return [*said, *_edges(rows, board), markdown(table), ""]


def _spoken(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _edges(rows: Rows, board: Board) -> list[str]:
    """A list of rates that should still be tried."""
    waiting = _untried(rows, board)
    if not waiting:
        return []
    legend = (
        "**Not tried yet**, though it is a neighbour of the best rate (in brackets: in how many settings). Places may "
        "change with it:"
    )
    said = [
        f"- {key} {value:g} for {', '.join(f'{name} ({count})' for name, count in methods.items())}"
        for (key, value), methods in sorted(waiting.items())
    ]
    return [legend, "", *said, ""]


def _untried(rows: Rows, board: Board) -> dict[tuple[str, float], dict[str, int]]:
    """Untried neighbours of chosen points: key and value → method → in how many settings."""
    waiting: dict[tuple[str, float], dict[str, int]] = {}
    for row in rows:
        for one in untried(row, board):
            there = waiting.setdefault(one, {})
            there[str(row["method"])] = there.get(str(row["method"]), 0) + 1
    return waiting


def _rules(board: Board, run: Collection[str]) -> list[str]:
    """The section on settings, competing methods and those left out, and the section on caveats."""
    settings = [f"- `{name}`: {', '.join(f'`{text}`' for text in sets)}" for name, sets in board.settings.items()]
    besides = [
        f"- `{name}` with {', '.join(f'`{text}`' for text in sets)}" for name, sets in board.entries.items() if sets
    ]
    later = [
        f"- `{name}` ({'separate' if name in run else 'defined, not run'}): "
        f"{', '.join(f'`{text}`' for text in one.sets)}. Also with {', '.join(one.entries)}. {one.why} "
        f"`torso leaderboard --only setting={name}` runs it."
        for name, one in board.later.items()
    ]
    left = [f"- {', '.join(names)}: {why}." for why, names in board.left_out.items()]
    return [
        "## Settings and entries",
        "",
        *settings,
        *later,
        "",
        f"{len(board.entries)} presets compete. These have settings besides their name:",
        "",
        *besides,
        "",
        "Not on the board:",
        "",
        *left,
        "",
        "## Caveats",
        "",
        *(f"- {text}" for text in board.caveats),
        "",
    ]


def _made(run: Rows) -> list[str]:
    """The section on how to make the page again: commands, machine, versions, data."""
    said = [
        "## Put your own method beside these",
        "",
        "Write the method in a file ([how](extending.md)) and name the file. The printed table has its row. It also "
        "has published rows, marked with °: the rows around yours, the first five and FedAvg. `--json` prints all "
        "rows. Differences are paired by seed, since clients, initial weights and participants are the same.",
        "",
        "All four settings with three seeds took 94 s on one NVIDIA H200 for `fedbabu-nesterov` of "
        "`examples/own_methods.py`: 35 runs that choose rates and 12 that judge, with the start of Python and decoding "
        "(n = 1, torch 2.11, 4 processes).",
        "",
        "<!-- not run: needs an accelerator -->",
        "```console",
        "$ torso leaderboard --plugin own_methods.py --only method=NAME --data-root DIR --precision bf16",
        "```",
        "",
        "## Make this page again",
        "",
        "This page is made from `published.json` and `leaderboard.toml` in `src/torso/papers/board/`.",
        "",
        "```console",
        "$ torso leaderboard --dry-run                                    # runs and time",
        "```",
        "",
        "<!-- not run: takes hours, and needs an accelerator -->",
        "```console",
        "$ torso leaderboard --search --data-root DIR --out runs/papers   # combinations, on validation data",
        "$ torso leaderboard --seeds 3 --data-root DIR --out runs/papers  # all methods, and what the search has found",
        "$ python -m torso.papers.docs runs/papers                        # this page",
        "```",
        "",
        "With `--go-on` a published run of the same config counts as run, whatever its machine. Then only new methods "
        "and untried neighbours of the best rates are run.",
        "",
    ]
    if not run:
        return said
    known = machines_and_versions(run)
    seeds = sorted({len(row["seeds"]) for row in run})
    known += [f"Seeds: {' or '.join(map(str, seeds))}.", *caveats_of(row["data"] for row in run)]
    return [*said, *(f"- {text}" for text in known), ""]


def write(folder: Path) -> None:
    """Write the page and its picture."""
    data, board = read(), load()
    (folder / PAGE).write_text(page(data, board), encoding="utf-8")
    if there := _by_setting(data["board"], board):
        (folder / PICTURE).write_text(picture(there, ABOUT), encoding="utf-8")
