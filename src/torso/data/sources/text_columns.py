"""The text of each row of a table: one column, or several joined by blanks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from torso.data.inputs import Array
from torso.data.sources.cells import Table
from torso.errors import RequestError


def texts_of(table: Table, columns: Sequence[str]) -> Array:
    """str [n], in an array of objects."""
    found = np.empty(len(table), dtype=object)
    cells = zip(*(table.column(name) for name in columns), strict=True)
    found[:] = [" ".join(cell for cell in row if cell) for row in cells]
    return found


def with_text(
    tables: Sequence[Table], columns: Sequence[str], empty: Literal["refuse", "skip"], source: str
) -> tuple[list[Table], tuple[str, ...]]:
    """The tables without rows that have no text, and a remark that says how many; or a refusal with the line."""
    kept, left_out = [], []
    for table in tables:
        has = texts_of(table, columns) != ""
        missing = [table.lines[row] for row in np.flatnonzero(~has)]
        if missing and empty == "refuse":
            raise RequestError(
                f"{table.path}, line {missing[0]}: the text is empty ({', '.join(columns)}), {len(missing)} in all. "
                "Expected: a text in every row, or data.text.empty = skip"
            )
        if missing and not has.any():
            raise RequestError(f"{table.path}: every text is empty ({', '.join(columns)}). Expected: texts")
        kept.append(table.take(np.flatnonzero(has)) if missing else table)
        left_out += missing
    if not left_out:
        return kept, ()
    rows = "1 row without a text was" if len(left_out) == 1 else f"{len(left_out)} rows without a text were"
    return kept, (f"data.source = {source!r}: {rows} left out (data.text.empty = skip)",)
