"""The source `csv`, and how the rows of any table become samples: columns of numbers and categories, or texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.image_files import SUFFIXES
from torso.data.images import Dataset, Samples, floats_of_columns
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

FEW = 20  # rows; in fewer rows, all categories or classes may differ by chance
_MOST = 1000  # categories of a column; a column with more holds names or texts, which make no useful features


@sources.register("csv")
def csv_rows(options: DataConfig, seed: int) -> Dataset:
    """Your own table: a .csv with a label column, and numbers and categories or a text (`data.csv`), or a folder with
    train.csv and test.csv."""
    root = root_of(options, EXPECTED)
    paths = [root / "train.csv", root / "test.csv"] if root.is_dir() else [root]
    return dataset_of_tables(root.stem, [Table.read(path, options.csv) for path in paths], options)


def dataset_of_tables(title: str, tables: list[Table], options: DataConfig) -> Dataset:
    """The data set of a table of training rows and one of test rows; of a single table, a part is held out."""
    how = options.csv
    remarks: tuple[str, ...] = ()
    _check_columns(tables, how)
    if how.text:
        tables, remarks = with_text(tables, how.text, options.text.empty, options.source)
    classes = _classes(tables[0], how)
    clients = in_order({value for table in tables for value in table.column(how.client)}) if how.client else []
    if len(tables) == 1:
        whole = tables[0]
        if clients:
            group = whole.numbered(how.client, clients, "client")
        else:
            group = whole.numbered(how.label, classes, "class")
        key = numpy_generator(0, "csv", "test").random(len(group))  # the same for every seed
        tables = [whole.take(rows) for rows in stratified(group, how.test_share, key)]
    columns: list[NumberEncoder | CategoryEncoder] = []
    if not how.text:
        columns = [_column(tables[0], name, name in how.categorical) for name in _features(tables, how)]
    encoders = [column.with_categories_of(tables) for column in columns]
    train, test = (
        Samples(
            texts_of(table, how.text) if how.text else np.concatenate([c.encode(table) for c in encoders], axis=1),
            table.numbered(how.label, classes, "class"),
            table.numbered(how.client, clients, "client") if clients else None,
        )
        for table in tables
    )
    described = tuple(encoder.as_column for encoder in encoders)
    return Dataset(
        title,
        train,
        test,
        classes=len(classes),
        input=Texts() if how.text else floats_of_columns(described),
        names=tuple(clients),
        remarks=(*remarks, *_remarks(options, columns, tables)),
        class_names=tuple(classes),
        columns=described,
    )


def number(cell: str) -> float | None:
    """The number in a cell; None: it holds no finite number."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class NumberEncoder:
    """The encoder of a column of numbers. Missing values are replaced by the mean of the training rows."""

    name: str
    mean: float

    @property
    def as_column(self) -> Column:
        """The column as plain data."""
        return Column(self.name)

    def with_categories_of(self, tables: Sequence[Table]) -> NumberEncoder:
        """The encoder itself: it does not depend on other rows than the training rows."""
        return self

    def encode(self, table: Table) -> Array:
        """The feature [n, 1] of each row."""
        return np.array([self._of(cell, table, row) for row, cell in enumerate(table.column(self.name))]).reshape(-1, 1)

    def _of(self, cell: str, table: Table, row: int) -> float:
        value = self.mean if is_missing(cell) else number(cell)
        if value is None:
            raise RequestError(
                f"{table.path}, line {table.lines[row]}: {self.name} = {cell!r} is no number, and the column has only "
                f"numbers in the training rows. Expected: a number; or name it in data.csv.categorical"
            )
        return value


@dataclass(frozen=True)
class CategoryEncoder:
    """The encoder of a column of categories: one feature, 0 or 1, for each. A value that is not among them has 0 in
    all features; a missing value is a category with the name ""."""

    name: str
    values: tuple[str, ...]  # sorted

    @property
    def as_column(self) -> Column:
        """The column as plain data."""
        return Column(self.name, self.values)

    def with_categories_of(self, tables: Sequence[Table]) -> CategoryEncoder:
        """An encoder with the categories of all rows. Those that only test rows have become features in a federation in
        which other clients train on them; otherwise `load` removes them."""
        return CategoryEncoder(
            self.name, tuple(sorted({cell for table in tables for cell in _plain(table.column(self.name))}))
        )

    def encode(self, table: Table) -> Array:
        """The features [n, categories] of each row."""
        place = {value: number for number, value in enumerate(self.values)}
        features = np.zeros((len(table), len(self.values)))
        for row, cell in enumerate(_plain(table.column(self.name))):
            if cell in place:
                features[row, place[cell]] = 1
        return features


def _plain(cells: Iterable[str]) -> list[str]:
    """The cells, with "" in place of every cell that stands for a missing value."""
    return ["" if is_missing(cell) else cell for cell in cells]


def _column(train: Table, name: str, categorical: bool) -> NumberEncoder | CategoryEncoder:
    """The encoder of a column, by its training rows: numbers if all values are numbers, otherwise categories."""
    cells = train.column(name)
    present = [cell for cell in cells if not is_missing(cell)]
    if not present:
        raise RequestError(
            f"{train.path}: column {name!r} has no value in the training rows. "
            "Expected: at least one, or its name in data.csv.drop"
        )
    numbers = [value for value in map(number, present) if value is not None]
    if len(numbers) == len(present) and not categorical:
        return NumberEncoder(name, math.fsum(numbers) / len(numbers))
    values = tuple(sorted(set(_plain(cells))))
    if all(Path(cell).suffix.lower() in SUFFIXES for cell in present):
        raise RequestError(
            f"{train.path}: column {name!r} names image files, such as {present[0]!r}, and a table is read without "
            "them. Expected: the images in folders (CLIENT/CLASS/*.jpg); or its name in data.csv.drop"
        )
    if len(values) > _MOST:
        raise RequestError(
            f"{train.path}: column {name!r} has {len(values)} different values, such as {present[0]!r}. "
            f"Expected: numbers, or at most {_MOST} categories; name it in data.csv.text if it is a text, and in "
            "data.csv.drop if it is no feature"
        )
    return CategoryEncoder(name, values)


def _check_columns(tables: Sequence[Table], how: CsvConfig) -> None:
    """Refuse a config that names missing columns, and a test file that lacks columns of the training file."""
    train = tables[0]
    named = [("label", how.label)]  # key of data.csv, name of a column
    if how.client:
        named += [("client", how.client)]
    named += [("text", name) for name in how.text]
    if not how.text:
        named += [("drop", name) for name in how.drop] + [("categorical", name) for name in how.categorical]
    for key, name in named:
        if name not in train.names:
            raise _no_column(train, key, name, how)
    needed = {name for _, name in named} if how.text else set(train.names) - set(how.drop)
    for table in tables[1:]:
        missing = [name for name in train.names if name in needed and name not in table.names]
        if missing:
            raise RequestError(f"{table.path} has no column {missing[0]!r}. Expected: the columns of {train.path}")


def _no_column(train: Table, key: str, name: str, how: CsvConfig) -> RequestError:
    """The error for a column that does not exist. A table with one column may have another delimiter."""
    delimiter = next((mark for mark in ";\t|" if len(train.names) == 1 and mark in train.names[0]), "")
    if delimiter:
        return RequestError(
            f"{train.path} has {delimiter!r} between its fields, and data.csv.delimiter = {how.delimiter!r}. "
            f'Expected: --set "data.csv.delimiter={delimiter!r}"'
        )
    hint = did_you_mean(name, train.names)
    more = "" if how.names or key != "label" else ". A .csv without a line of names needs data.csv.names"
    return RequestError(
        f"data.csv.{key} = {name!r} is no column of {train.path}{hint} Columns: {', '.join(train.names)}{more}"
    )


def _features(tables: Sequence[Table], how: CsvConfig) -> list[str]:
    """The columns that features are made of, in the order of the training file."""
    unused = {how.label, how.client, *how.drop}
    names = [name for name in tables[0].names if name not in unused]
    if not names:
        listed = ", ".join(sorted(unused - {""}))
        raise RequestError(f"{tables[0].path} has no column beside {listed}. Expected: features")
    return names


def _classes(train: Table, how: CsvConfig) -> list[str]:
    """The classes: the values of the label column, sorted as numbers or as words."""
    classes = in_order({value for value in train.column(how.label) if not is_missing(value)})
    if len(classes) == len(train) >= FEW:
        raise RequestError(
            f"data.csv.label = {how.label!r}: each of the {len(train)} rows of {train.path} has a different class. "
            "Expected: classes of several rows; a number to be predicted has none"
        )
    return classes


def in_order(values: Iterable[str]) -> list[str]:
    """The values sorted as numbers if all of them are numbers, otherwise as words."""
    every = list(values)
    numbers: dict[str, float] = {}
    for value in every:
        found = number(value)
        if found is not None:
            numbers[value] = found
    if len(numbers) < len(every):
        return sorted(every)
    return sorted(every, key=lambda value: (numbers[value], value))


def _remarks(
    options: DataConfig, columns: Sequence[NumberEncoder | CategoryEncoder], tables: Sequence[Table]
) -> tuple[str, ...]:
    """Remarks on columns that may be ids, on columns of numbers with a word among them, and on missing values and how
    they were filled."""
    source, rows = options.source, len(tables[0])
    remarks = [
        f"data.source = {source!r}: {column.name} has another value in each of the {rows} training rows, and becomes "
        f"as many features. If it is an id: data.csv.drop={column.name}"
        for column in columns
        if isinstance(column, CategoryEncoder) and len(column.values) == rows >= FEW
    ]
    for column in columns:
        if isinstance(column, CategoryEncoder) and column.name not in options.csv.categorical:
            word = _word_among_numbers(tables[0].column(column.name))
            if word:
                line = tables[0].lines[tables[0].column(column.name).index(word)]
                remarks.append(
                    f"data.source = {source!r}: {column.name} is read as {len(column.values)} categories, because "
                    f"{word!r} in line {line} is no number. If the column has numbers, write them with a decimal point "
                    "and leave a field without a number empty. If it has categories: "
                    f"data.csv.categorical={column.name}"
                )
    filled = []
    for column in columns:
        count = sum(is_missing(cell) for table in tables for cell in table.column(column.name))
        if count:
            how = f"mean {column.mean:.6g}" if isinstance(column, NumberEncoder) else "a category of their own"
            filled.append(f"{column.name} ({count}, {how})")
    if filled:
        remarks.append(f"data.source = {source!r}: missing values were filled: {', '.join(filled)}")
    return tuple(remarks)


def _word_among_numbers(cells: Sequence[str]) -> str:
    """The first cell that is no number, if most cells are numbers, perhaps with a decimal comma; otherwise ""."""
    present = [cell for cell in cells if not is_missing(cell)]
    numeric = sum(number(cell.replace(",", ".")) is not None for cell in present)
    return next((cell for cell in present if number(cell) is None), "") if 2 * numeric > len(present) else ""
