"""Class counts read from a file: clients × classes, with or without names.

CSV: a line for each client with one number for each class. A first line with class names and a first column with client
names are optional. JSON: a list of lists, {client: [counts]} or {client: {class: count}}.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torso.advise.traits import Counts
from torso.errors import RequestError
from torso.reading import parse_json

_EXPECTED = "Expected: clients × classes, whole numbers of samples, as .csv or .json"


@dataclass(frozen=True, eq=False)
class Table:
    """The number of training samples of each client and class [N, C], with the names that the file has."""

    counts: Counts
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def read_counts(path: Path) -> Table:
    """The counts in a .csv or .json file; raises RequestError if they cannot be used."""
    where = f"--counts {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"{where} cannot be read: {reason}. {_EXPECTED}") from None
    return _from_json(where, text) if path.suffix.lower() == ".json" else _from_csv(where, text)


def _from_csv(where: str, text: str) -> Table:
    rows = [
        [cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)
    ]
    if not rows:
        raise RequestError(f"{where} is empty. {_EXPECTED}")
    named_classes = not any(_is_number(cell) for cell in rows[0][1:]) and not _is_number(rows[0][-1])
    body = rows[1:] if named_classes else rows
    named_clients = bool(body) and not all(_is_number(row[0]) for row in body)
    skip = int(named_clients)
    if named_classes and not named_clients and body and len(rows[0]) == len(body[0]) and not rows[0][0]:
        named_clients, skip = True, 1  # an empty corner cell: the client names are numbers
    classes = tuple(rows[0][len(rows[0]) - (len(body[0]) - skip) :]) if named_classes and body else ()
    clients = tuple(row[0] for row in body) if named_clients else ()
    return _checked(where, [row[skip:] for row in body], clients, classes)


def _from_json(where: str, text: str) -> Table:
    try:
        tree = parse_json(text)
    except ValueError as error:
        raise RequestError(f"{where} is not JSON: {error}. {_EXPECTED}") from None
    if isinstance(tree, list):
        return _checked(where, tree, (), ())
    if not isinstance(tree, dict) or not tree:
        raise RequestError(f"{where} holds {type(tree).__name__}. Expected: a list of lists, or a table by client")
    clients = tuple(tree)
    if not all(isinstance(row, dict) for row in tree.values()):
        return _checked(where, list(tree.values()), clients, ())
    classes = tuple(dict.fromkeys(name for row in tree.values() for name in row))
    return _checked(where, [[row.get(name, 0) for name in classes] for row in tree.values()], clients, classes)


def _checked(where: str, rows: Sequence[Any], clients: tuple[str, ...], classes: tuple[str, ...]) -> Table:
    found: list[list[int]] = []
    for number, row in enumerate(rows):
        who = f"client {clients[number]!r}" if clients else f"client {number}"
        if not isinstance(row, list) or not row:
            raise RequestError(f"{where}: {who} is {row!r}. {_EXPECTED}")
        for value in row:
            if not _is_number(value):
                raise RequestError(f"{where}: {who} has {value!r} samples of a class. Expected: a whole number from 0")
        found.append([int(value) for value in row])
        if len(row) != len(found[0]):
            raise RequestError(f"{where}: {who} has {len(row)} classes, the first client {len(found[0])}. {_EXPECTED}")
        if not sum(found[-1]):
            raise RequestError(
                f"{where}: {who} has no samples. Expected: at least one sample, or no line for this client"
            )
    if len(found) < 2 or len(found[0]) < 2:
        size = f"{len(found)} × {len(found[0]) if found else 0}"
        raise RequestError(f"{where} has {size} counts. Expected: at least two clients and two classes")
    return Table(np.array(found, dtype=np.int64), clients, classes)


def _is_number(value: Any) -> bool:
    """A whole number from 0, as JSON or as text."""
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value >= 0) or (isinstance(value, str) and value.isascii() and value.isdigit())
