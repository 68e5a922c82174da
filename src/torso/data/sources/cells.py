"""`Table`: the cells of a table as text, with the line number of each row."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.images import Ints
from torso.data.inputs import is_missing
from torso.data.sources.base import reading
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import CsvConfig

EXPECTED = "a .csv file with a line of column names (or data.csv.names), or a folder with train.csv and test.csv"
_LONGEST = 1 << 24  # most characters of a field; texts may be long


def refuse_duplicate_names(path: Path, names: Sequence[str]) -> None:
    """Refuse two columns with the same name."""
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise RequestError(f"{path} has two columns {twice[0]!r}. Expected: a different name for each column")


@dataclass(frozen=True)
class Table:
    """The cells of a file as text, without blanks around them."""

    path: Path
    names: tuple[str, ...]  # of the columns
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]  # line number of each row in the file

    @classmethod
    def read(cls, path: Path, how: CsvConfig) -> Table:
        """Read a .csv file."""
        csv.field_size_limit(_LONGEST)
        with reading(path, EXPECTED), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=how.delimiter, strict=True)
            found = [(reader.line_num, tuple(cell.strip() for cell in cells)) for cells in reader if cells]
        if how.names:
            if found and found[0][1] == how.names:
                raise RequestError(f"data.csv.names = {','.join(how.names)} is line 1 of {path}: leave the key out")
            found.insert(0, (0, how.names))
        if len(found) < 2:
            raise RequestError(f"{path} has no rows. Expected: {EXPECTED}")
        _, names = found[0]
        rows = found[1:]
        refuse_duplicate_names(path, names)
        header = "data.csv.names" if how.names else "line 1"
        for line, cells in rows:
            if len(cells) != len(names):
                raise RequestError(
                    f"{path}, line {line} has {len(cells)} fields and {header} names {len(names)} columns. "
                    f"Expected: as many; fields with {how.delimiter!r} in them stand in quotes (data.csv.delimiter)"
                )
        return cls(path, names, tuple(cells for _, cells in rows), tuple(line for line, _ in rows))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Ints) -> Table:
        """The table with only these rows, in this order."""
        chosen = rows.tolist()
        return Table(self.path, self.names, tuple(self.rows[i] for i in chosen), tuple(self.lines[i] for i in chosen))

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        place = self.names.index(name)
        return [cells[place] for cells in self.rows]

    def numbered(self, name: str, known: Sequence[str], what: str) -> Ints:
        """A column as places in the list `known` of its values; `what` a value is ("class"), for messages."""
        place = {value: number for number, value in enumerate(known)}
        for value, line in zip(self.column(name), self.lines, strict=True):
            if is_missing(value):
                raise RequestError(f"{self.path}, line {line}: {name!r} is empty. Expected: a {what} in every row")
            if value not in place:
                some = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
                raise RequestError(
                    f"{self.path}, line {line}: {name} = {value!r} is not a {what} of the training rows. "
                    f"Expected: {some}"
                )
        return np.array([place[value] for value in self.column(name)], dtype=np.int64)
