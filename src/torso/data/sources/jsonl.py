"""The source `jsonl`: JSON lines, whose objects are the rows of a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torso.data.images import Dataset
from torso.data.sources.base import reading, root_of, sources
from torso.data.sources.cells import Table
from torso.data.sources.table import dataset_of_tables
from torso.errors import RequestError
from torso.reading import parse_json

if TYPE_CHECKING:
    from torso.config import DataConfig

_EXPECTED = "a .jsonl file with an object on each line, or a folder with train.jsonl and test.jsonl"


@sources.register("jsonl")
def jsonl(options: DataConfig, seed: int) -> Dataset:
    """Your own rows as JSON lines: objects with a label, and numbers and categories or a text (`data.csv`), or a folder
    with train.jsonl and test.jsonl."""
    root = root_of(options, _EXPECTED)
    paths = [root / "train.jsonl", root / "test.jsonl"] if root.is_dir() else [root]
    return dataset_of_tables(root.stem, [read_jsonl(path) for path in paths], options)


def read_jsonl(path: Path) -> Table:
    """The table of a .jsonl file; a key that an object lacks is an empty cell."""
    with reading(path, _EXPECTED):
        text = path.read_text(encoding="utf-8-sig")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise RequestError(f"{path} has no rows. Expected: {_EXPECTED}")
    found = [(number, _object(path, number, line)) for number, line in lines]
    names = tuple(dict.fromkeys(name for _, row in found for name in row))
    rows = tuple(tuple(row.get(name, "") for name in names) for _, row in found)
    return Table(path, names, rows, tuple(number for number, _ in found))


def _object(path: Path, number: int, line: str) -> dict[str, str]:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise RequestError(f"{path}, line {number} is no JSON: {error}. Expected: {_EXPECTED}") from None
    if not isinstance(found, dict):
        raise RequestError(f"{path}, line {number} is {type(found).__name__}. Expected: an object, such as {{...}}")
    return {name: _cell(path, number, name, value) for name, value in found.items()}


def _cell(path: Path, number: int, name: str, value: Any) -> str:
    """A value as the cell of a .csv file."""
    if isinstance(value, list | dict) or (isinstance(value, float) and not math.isfinite(value)):
        raise RequestError(
            f"{path}, line {number}: {name} = {value!r}. Expected: a text, a number, true, false or null"
        )
    return "" if value is None else str(value).strip()
