"""The published board (published.json): its rows are shown beside a user's methods, and a board can go on from them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.papers.board.rows import Row, key_of
from torso.papers.board.standings import name_of
from torso.reading import parse_json
from torso.results.files import write_text

FILE = Path(__file__).with_name("published.json")
MARK = "°"
_AROUND = 1  # how many places above and below a method of the user are shown
_FIRST = 5  # how many of the best rows are shown


def read(path: Path = FILE) -> dict[str, Any]:
    """The published results. `board`: the rows; `search`: what the search has found; `tuned`: tuning runs of rates that
    have not been judged yet, for --go-on."""
    nothing: dict[str, Any] = {"board": [], "search": {}, "tuned": []}
    return parse_json(path.read_text("utf-8")) if path.is_file() else nothing


def write(path: Path, rows: Iterable[Row], search: Mapping[str, Any], tuned: Iterable[Row] = ()) -> None:
    """Write the published results, each row on its own line, so that a diff shows which rows have changed."""

    def lines(each: Iterable[Row]) -> str:
        return ",\n".join(json.dumps(row, ensure_ascii=False) for row in each)

    found = json.dumps(search, ensure_ascii=False)
    write_text(path, f'{{"board": [\n{lines(rows)}\n],\n"search": {found},\n"tuned": [\n{lines(tuned)}\n]}}\n')


def merged(there: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The published results with the rows of a board.json. A row that was judged, at as many seeds as the old one, or
    that failed, replaces the old one; of the others the tuning runs are kept."""
    board = {key_of(row): row for row in there["board"]}
    tuned = {key_of(row): row for row in there["tuned"]}
    for row in rows:
        key = key_of(row)
        least = len(board[key]["seeds"]) if key in board else 0
        if row["status"].startswith("failed") or (row["status"] == "ok" and len(row["seeds"]) >= max(least, 1)):
            board[key] = {name: value for name, value in row.items() if name != "tuned_with"}
            tuned.pop(key, None)
        elif row["tried"] and row.get("tuned_with"):
            tuned[key] = {name: row[name] for name in ("setting", "method", "tuned_with", "tried")}
    return {"board": list(board.values()), "search": there["search"], "tuned": list(tuned.values())}


def beside(rows: Sequence[Mapping[str, Any]], published: Sequence[Row]) -> list[Row]:
    """The published rows in the settings of `rows`, of methods that `rows` does not have."""
    there, settings = {key_of(row) for row in rows}, {str(row["setting"]) for row in rows}
    return [
        {**row, "published": True}
        for row in published
        if row["setting"] in settings and key_of(row) not in there and row["status"] == "ok"
    ]


def worth_showing(there: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of a setting that are printed: all rows of the user, and of the published ones the first, FedAvg's and
    those next to the user's. `there`: the rows in their order."""
    own = [place for place, row in enumerate(there) if not row.get("published")]
    near = {place + step for place in own for step in range(-_AROUND, _AROUND + 1)}
    kept = {*own, *near, *range(_FIRST)}
    return [row for place, row in enumerate(there) if place in kept or row["method"] == "fedavg"]


def marked(row: Mapping[str, Any]) -> dict[str, str]:
    """The cell with the method's name, marked if the row is published."""
    return {"method": name_of(row) + (MARK if row.get("published") else "")}


def origins(rows: Collection[Mapping[str, Any]]) -> str:
    """Where the published rows come from: `NVIDIA H200 (bf16), torch 2.11.0, cifar10_jpeg.npz`."""
    published = [row for row in rows if row.get("published")]
    machines = dict.fromkeys(
        f"{row['machine']['device']} ({row['machine']['precision']}), torch {row['versions']['torch']}"
        for row in published
    )
    return ", ".join([*machines, *dict.fromkeys(str(row["data"]) for row in published)])
