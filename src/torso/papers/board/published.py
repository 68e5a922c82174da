"""The board that Torso has published (docs/leaderboard.md): its rows stand beside those of a user's own methods, and a
board can go on from them."""

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
_AROUND = 1  # places above and below a method of the user's own
_FIRST = 5


def read(path: Path = FILE) -> dict[str, Any]:
    """`board`: the rows; `search`: what the search has found."""
    nothing: dict[str, Any] = {"board": [], "search": {}}
    return parse_json(path.read_text("utf-8")) if path.is_file() else nothing


def write(path: Path, rows: Iterable[Row], search: Mapping[str, Any]) -> None:
    """A row a line, so that a change shows which rows are others."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    write_text(path, f'{{"board": [\n{lines}\n],\n"search": {json.dumps(search, ensure_ascii=False)}}}\n')


def beside(rows: Sequence[Mapping[str, Any]], published: Sequence[Row]) -> list[Row]:
    """The published rows in the settings of these, of methods that are not among these."""
    there, settings = {key_of(row) for row in rows}, {str(row["setting"]) for row in rows}
    return [
        {**row, "published": True}
        for row in published
        if row["setting"] in settings and key_of(row) not in there and row["status"] == "ok"
    ]


def worth_showing(there: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a setting's rows in their order: all of the user's own; of the published ones the first, FedAvg's, and those
    next to the user's own."""
    own = [place for place, row in enumerate(there) if not row.get("published")]
    near = {place + step for place in own for step in range(-_AROUND, _AROUND + 1)}
    kept = {*own, *near, *range(_FIRST)}
    return [row for place, row in enumerate(there) if place in kept or row["method"] == "fedavg"]


def marked(row: Mapping[str, Any]) -> dict[str, str]:
    """The cell of the method's name, with a mark if the row is published."""
    return {"method": name_of(row) + (MARK if row.get("published") else "")}


def origins(rows: Collection[Mapping[str, Any]]) -> str:
    """Where published rows come from: NVIDIA H200 (bf16), torch 2.11.0, cifar10_jpeg.npz."""
    published = [row for row in rows if row.get("published")]
    machines = dict.fromkeys(
        f"{row['machine']['device']} ({row['machine']['precision']}), torch {row['versions']['torch']}"
        for row in published
    )
    return ", ".join([*machines, *dict.fromkeys(str(row["data"]) for row in published)])
