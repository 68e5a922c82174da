"""Texts from the rows of a table: one column, or several joined by blanks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from torso.data.inputs import Array
from torso.data.sources.cells import Table
from torso.errors import RequestError


def texts_of(table: Table, columns: Sequence[str]) -> Array:
    """The text of each row, str [n] in an array of objects."""
    texts = np.empty(len(table), dtype=object)
    rows = zip(*(table.column(name) for name in columns), strict=True)
    texts[:] = [" ".join(cell for cell in row if cell) for row in rows]
    return texts


def with_text(
    tables: Sequence[Table], columns: Sequence[str], empty: Literal["refuse", "skip"], source: str
) -> tuple[list[Table], tuple[str, ...]]:
    """The tables without the rows that have no text, and a remark with their number; if `empty` is "refuse", such a row
    is an error that names its line."""
    kept, left_out = [], []
    for table in tables:
        has_text = texts_of(table, columns) != ""
        missing = [table.lines[row] for row in np.flatnonzero(~has_text)]
        if missing and empty == "refuse":
            raise RequestError(
                f"{table.path}, line {missing[0]}: the text is empty ({', '.join(columns)}), {len(missing)} in all. "
                "Expected: a text in every row, or data.text.empty = skip"
            )
        if missing and not has_text.any():
            raise RequestError(f"{table.path}: every text is empty ({', '.join(columns)}). Expected: texts")
        kept.append(table.take(np.flatnonzero(has_text)) if missing else table)
        left_out += missing
    if not left_out:
        return kept, ()
    rows = "1 row without a text was" if len(left_out) == 1 else f"{len(left_out)} rows without a text were"
    return kept, (f"data.source = {source!r}: {rows} left out (data.text.empty = skip)",)
