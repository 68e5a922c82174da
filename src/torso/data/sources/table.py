"""Rows of a table: a .csv file, or a folder with train.csv and test.csv. Columns of numbers and of categories, or of
text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.image_files import SUFFIXES
from torso.data.images import Dataset, Samples, of_columns
from torso.data.inputs import Array, is_missing
from torso.data.parted import stratified
from torso.data.sources.base import root_of, sources
from torso.data.sources.cells import EXPECTED, Table
from torso.data.sources.text_columns import texts_of, with_text
from torso.data.table_columns import Column
from torso.data.texts import Texts
from torso.errors import RequestError, did_you_mean
from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import CsvConfig, DataConfig

FEW = 20  # rows: in fewer, categories and classes may all differ by chance
_MOST = 1000  # categories of a column: more are names or texts, of which no feature can be made


@sources.register("csv")
def csv_rows(options: DataConfig, seed: int) -> Dataset:
    """Your own table: a .csv with a label column, and numbers and categories or a text (`data.csv`), or a folder with
    train.csv and test.csv."""
    root = root_of(options, EXPECTED)
    paths = [root / "train.csv", root / "test.csv"] if root.is_dir() else [root]
    return dataset_of_tables(root.stem, [Table.read(path, options.csv) for path in paths], options)


def dataset_of_tables(title: str, tables: list[Table], options: DataConfig) -> Dataset:
    """What the tables say, one of training rows and one of test rows; of a single one, a part is held out."""
    how = options.csv
    remarks: tuple[str, ...] = ()
    _check_columns(tables, how)
    if how.text:
        tables, remarks = with_text(tables, how.text, options.text.empty, options.source)
    classes = _classes(tables[0], how)
    clients = in_order({value for table in tables for value in table.column(how.client)}) if how.client else []
    if len(tables) == 1:
        group = tables[0].numbered(*((how.client, clients, "client") if clients else (how.label, classes, "class")))
        key = numpy_generator(0, "csv", "test").random(len(group))  # the same for every seed
        tables = [tables[0].take(rows) for rows in stratified(group, how.test_share, key)]
    columns = [] if how.text else [_column(tables[0], name, name in how.categorical) for name in _features(tables, how)]
    wide = [column.with_those_of(tables) for column in columns]
    train, test = (
        Samples(
            texts_of(table, how.text) if how.text else np.concatenate([c.encode(table) for c in wide], axis=1),
            table.numbered(how.label, classes, "class"),
            table.numbered(how.client, clients, "client") if clients else None,
        )
        for table in tables
    )
    told = tuple(column.told for column in wide)
    return Dataset(
        title,
        train,
        test,
        classes=len(classes),
        input=Texts() if how.text else of_columns(told),
        names=tuple(clients),
        remarks=(*remarks, *_remarks(options.source, columns, tables)),
        class_names=tuple(classes),
        columns=told,
    )


def number(cell: str) -> float | None:
    """A finite number, or None."""
    try:
        found = float(cell)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


@dataclass(frozen=True)
class Numbers:
    """A column of numbers; a missing one is filled with the mean of the training rows."""

    name: str
    mean: float

    @property
    def told(self) -> Column:
        return Column(self.name)

    def with_those_of(self, tables: Sequence[Table]) -> Numbers:
        return self

    def encode(self, table: Table) -> Array:
        """[n, 1]."""
        return np.array([self._of(cell, table, row) for row, cell in enumerate(table.column(self.name))]).reshape(-1, 1)

    def _of(self, cell: str, table: Table, row: int) -> float:
        found = self.mean if is_missing(cell) else number(cell)
        if found is None:
            raise RequestError(
                f"{table.path}, line {table.lines[row]}: {self.name} = {cell!r} is no number, and the column has only "
                f"numbers in the training rows. Expected: a number; or name it in data.csv.categorical"
            )
        return found


@dataclass(frozen=True)
class Categories:
    """A column of categories, as many features of 0 and 1; another value is 0 in all of them. What is missing is a
    category of its own, with the name ""."""

    name: str
    values: tuple[str, ...]  # sorted

    @property
    def told(self) -> Column:
        return Column(self.name, self.values)

    def with_those_of(self, tables: Sequence[Table]) -> Categories:
        """With the values of all rows. Those that only test rows have are features in a federation whose other clients
        train on them; otherwise `load` leaves them out."""
        return Categories(
            self.name, tuple(sorted({one for table in tables for one in _plain(table.column(self.name))}))
        )

    def encode(self, table: Table) -> Array:
        """[n, values]."""
        place = {value: number for number, value in enumerate(self.values)}
        found = np.zeros((len(table), len(self.values)))
        for row, cell in enumerate(_plain(table.column(self.name))):
            if cell in place:
                found[row, place[cell]] = 1
        return found


def _plain(cells: Iterable[str]) -> list[str]:
    """The cells with "" for whatever stands for a missing value."""
    return ["" if is_missing(cell) else cell for cell in cells]


def _column(train: Table, name: str, categorical: bool) -> Numbers | Categories:
    """How a column is encoded, from the training rows: numbers where all that is there are numbers."""
    cells = train.column(name)
    there = [cell for cell in cells if not is_missing(cell)]
    if not there:
        raise RequestError(
            f"{train.path}: column {name!r} has no value in the training rows. "
            "Expected: at least one, or its name in data.csv.drop"
        )
    numbers = [found for found in map(number, there) if found is not None]
    if len(numbers) == len(there) and not categorical:
        return Numbers(name, math.fsum(numbers) / len(numbers))
    values = tuple(sorted(set(_plain(cells))))
    if all(Path(cell).suffix.lower() in SUFFIXES for cell in there):
        raise RequestError(
            f"{train.path}: column {name!r} names image files, such as {there[0]!r}, and a table is read without them. "
            "Expected: the images in folders (CLIENT/CLASS/*.jpg); or its name in data.csv.drop"
        )
    if len(values) > _MOST:
        raise RequestError(
            f"{train.path}: column {name!r} has {len(values)} different values, such as {there[0]!r}. "
            f"Expected: numbers, or at most {_MOST} categories; name it in data.csv.text if it is a text, and in "
            "data.csv.drop if it is no feature"
        )
    return Categories(name, values)


def _check_columns(tables: Sequence[Table], how: CsvConfig) -> None:
    """The columns that the config names must be there, and the same in both files."""
    train = tables[0]
    named = [("label", how.label), *([("client", how.client)] if how.client else [])]
    named += [("text", name) for name in how.text]
    if not how.text:
        named += [("drop", name) for name in how.drop] + [("categorical", name) for name in how.categorical]
    for key, name in named:
        if name not in train.names:
            other = next((mark for mark in ";\t|" if len(train.names) == 1 and mark in train.names[0]), "")
            if other:
                raise RequestError(
                    f"{train.path} has {other!r} between its fields, and data.csv.delimiter = {how.delimiter!r}. "
                    f'Expected: --set "data.csv.delimiter={other!r}"'
                )
            hint = did_you_mean(name, train.names)
            more = "" if how.names or key != "label" else ". A .csv without a line of names needs data.csv.names"
            raise RequestError(
                f"data.csv.{key} = {name!r} is no column of {train.path}{hint} Columns: {', '.join(train.names)}{more}"
            )
    needed = {name for _, name in named} if how.text else set(train.names) - set(how.drop)
    for table in tables[1:]:
        missing = [name for name in train.names if name in needed and name not in table.names]
        if missing:
            raise RequestError(f"{table.path} has no column {missing[0]!r}. Expected: the columns of {train.path}")


def _features(tables: Sequence[Table], how: CsvConfig) -> list[str]:
    """The columns that features are made of, in the order of the training file."""
    aside = {how.label, how.client, *how.drop}
    names = [name for name in tables[0].names if name not in aside]
    if not names:
        missing = ", ".join(sorted(aside - {""}))
        raise RequestError(f"{tables[0].path} has no column beside {missing}. Expected: features")
    return names


def _classes(train: Table, how: CsvConfig) -> list[str]:
    """The values of the label column, in their order as numbers or as words."""
    found = in_order({value for value in train.column(how.label) if not is_missing(value)})
    if len(found) == len(train) >= FEW:
        raise RequestError(
            f"data.csv.label = {how.label!r}: each of the {len(train)} rows of {train.path} has a class of its own. "
            "Expected: classes of several rows; a number to be predicted has none"
        )
    return found


def in_order(values: Iterable[str]) -> list[str]:
    """The cells as numbers where all of them are numbers, otherwise as words."""
    every = list(values)
    by_number = {value: found for value in every if (found := number(value)) is not None}
    return sorted(every, key=lambda value: (by_number[value], value)) if len(by_number) == len(every) else sorted(every)


def _remarks(source: str, columns: Sequence[Numbers | Categories], tables: Sequence[Table]) -> tuple[str, ...]:
    """What was missing and how it was filled, and columns that say nothing of another row."""
    said, ids = [], [c for c in columns if isinstance(c, Categories) and len(c.values) == len(tables[0]) >= FEW]
    alone = tuple(
        f"data.source = {source!r}: {c.name} is another in each of the {len(tables[0])} training rows, and becomes as "
        f"many features. If it is an id: data.csv.drop={c.name}"
        for c in ids
    )
    for column in columns:
        count = sum(map(is_missing, (cell for table in tables for cell in table.column(column.name))))
        if count:
            how = f"mean {column.mean:.6g}" if isinstance(column, Numbers) else "a category of their own"
            said.append(f"{column.name} ({count}, {how})")
    filled = (f"data.source = {source!r}: missing values were filled: {', '.join(said)}",) if said else ()
    return (*alone, *filled)
