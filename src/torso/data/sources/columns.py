"""Parquet: columns of numbers and categories, as a .csv has them, or a column of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.image_files import Content, decode, told
from torso.data.images import Dataset, Images, Ints
from torso.data.parted import parted
from torso.data.sources.base import reading, root_of, sources
from torso.data.sources.cells import Table
from torso.data.sources.table import dataset_of_tables, in_order
from torso.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from torso.config import DataConfig

_EXPECTED = "a .parquet file, or a folder with train*.parquet and test*.parquet (or train/ and test/)"
TEST_NAMES = ("test", "validation", "valid", "val")  # the first that is there


@sources.register("parquet")
def parquet(options: DataConfig, seed: int) -> Dataset:
    """Your own table in Parquet (needs the extra `parquet`): numbers and categories, a text, or a column of images;
    label, client and text columns as data.csv names them."""
    arrow = _pyarrow()
    root = root_of(options, _EXPECTED)
    parts = []
    for files in _files(root):
        with reading(files[0], _EXPECTED):
            parts.append(arrow.concat_tables([arrow.parquet.read_table(file) for file in files]))
    return dataset_of_columns(root.stem, [Columns(str(root), part) for part in parts], options)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RequestError("data.source = 'parquet' needs pyarrow. Install it: pip install 'torso[parquet]'") from None
    return pyarrow


def _files(root: Path) -> list[list[Path]]:
    """The files to train on and, where their names or folders say so, those to test on."""
    if not root.is_dir():
        return [[root]]
    found = sorted(root.rglob("*.parquet"))
    if not found:
        raise RequestError(f"{root} holds no .parquet files. Expected: {_EXPECTED}")

    def named(word: str) -> list[Path]:
        return [file for file in found if file.stem.lower().startswith(word) or file.parent.name.lower() == word]

    train = named("train")
    test = next((files for word in TEST_NAMES if (files := named(word))), [])
    if test and not train:
        raise RequestError(f"{root} has {test[0].name} and nothing to train on. Expected: {_EXPECTED}")
    return [train, test] if test else [train or found]


@dataclass(frozen=True, eq=False)
class Columns:
    """One split as an Arrow table. `local`: whether images may be files on this machine that the table names."""

    where: str
    table: Any
    local: bool = False

    def column(self, key: str, name: str) -> list[Any]:
        if name not in self.table.column_names:
            hint = did_you_mean(name, self.table.column_names)
            raise RequestError(
                f"data.csv.{key} = {name!r} is no column of {self.where}{hint} "
                f"Columns: {', '.join(self.table.column_names)}"
            )
        return list(self.table.column(name).to_pylist())

    @property
    def image_column(self) -> str:
        """The first column that holds images: bytes, or bytes and a path; "" where there is none."""
        from pyarrow import types

        for field in self.table.schema:
            inside = {part.name for part in field.type} if types.is_struct(field.type) else set()
            if inside == {"bytes", "path"} or types.is_binary(field.type) or types.is_large_binary(field.type):
                return str(field.name)
        return ""

    def contents(self, name: str) -> list[Content]:
        return [self._content(row, cell) for row, cell in enumerate(self.table.column(name).to_pylist())]

    def _content(self, row: int, cell: Any) -> Content:
        found = cell.get("bytes") if isinstance(cell, dict) else cell
        if found is None and self.local and isinstance(cell, dict) and cell.get("path"):
            return Path(cell["path"])
        return found if isinstance(found, bytes) else b""  # is named among those that cannot be read

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Of the columns whose classes Hugging Face's `datasets` has named, in the table's own metadata."""
        try:
            told = json.loads((self.table.schema.metadata or {}).get(b"huggingface", b"{}"))
            features = told.get("info", {}).get("features", {})
            return {column: tuple(map(str, about["names"])) for column, about in features.items() if "names" in about}
        except (ValueError, AttributeError, TypeError):
            return {}


def dataset_of_columns(title: str, parts: Sequence[Columns], options: DataConfig) -> Dataset:
    """What Arrow tables say, one of training rows and one of test rows; of a single one, a part is held out."""
    image = "" if options.csv.text else parts[0].image_column
    if image:
        return _images(title, parts, image, options)
    return dataset_of_tables(title, [_as_table(part, options) for part in parts], options)


def _as_table(part: Columns, options: DataConfig) -> Table:
    """The same cells as a .csv would have; columns of lists and the like must be dropped."""
    from pyarrow import types

    names = part.table.column_names
    how = options.csv
    used = {how.label, how.client, *how.text} if how.text else set(names) - set(how.drop)
    for name in (name for name in names if name in used):
        kind = part.table.schema.field(name).type
        if types.is_nested(kind):
            raise RequestError(
                f"{part.where}: column {name!r} holds {kind}. Expected: numbers or categories, an image column, or its "
                "name in data.csv.drop"
            )
    cells = [_words(part, name) if name in used else [""] * part.table.num_rows for name in names]
    rows = tuple(zip(*cells, strict=True))
    return Table(Path(part.where), tuple(names), rows, tuple(range(1, len(rows) + 1)))


def _words(part: Columns, name: str) -> list[str]:
    names = part.class_names.get(name, ())
    return ["" if cell is None else _named(cell, names) for cell in part.table.column(name).to_pylist()]


def _named(cell: Any, names: Sequence[str]) -> str:
    known = names and isinstance(cell, int) and 0 <= cell < len(names)
    return names[cell] if known else str(cell).strip()


def _images(title: str, parts: Sequence[Columns], image: str, options: DataConfig) -> Dataset:
    how = options.csv
    contents = [content for part in parts for content in part.contents(image)]
    test = np.repeat(np.arange(len(parts)) == 1, [part.table.num_rows for part in parts])
    label, classes = _numbered(parts, "label", how.label)
    client, clients = _numbered(parts, "client", how.client) if how.client else (np.zeros_like(label), ())
    names = [f"{part.where}, row {row}" for part in parts for row in range(part.table.num_rows)]
    decoded = decode(names, contents, options.size)
    remarks = told(decoded.broken, options.folder.unreadable, len(contents))
    test, label, client = test[decoded.rows], label[decoded.rows], client[decoded.rows]
    rows = [np.flatnonzero(~test), np.flatnonzero(test)]
    if len(parts) == 1:
        rows = list(parted(client if clients else None, label, how.test_share))
    train, held = (Images(decoded.images[part], label[part], client[part] if clients else None) for part in rows)
    return Dataset(
        title,
        train,
        held,
        classes=len(classes),
        names=clients,
        class_names=classes,
        remarks=tuple(f"data.source = {options.source!r}: {remark}" for remark in remarks),
    )


def _numbered(parts: Sequence[Columns], key: str, name: str) -> tuple[Ints, tuple[str, ...]]:
    """A column of all parts as places in a list of its values, which is given or made from the training rows."""
    given = parts[0].class_names.get(name, ())
    columns = [["" if cell is None else _named(cell, given) for cell in part.column(key, name)] for part in parts]
    known = list(given) if key == "label" and given else in_order({word for word in columns[0] if word})
    if key == "client":
        known = in_order({word for column in columns for word in column if word})
    place = {word: number for number, word in enumerate(known)}
    for part, column in zip(parts, columns, strict=True):
        strange = [(row, word) for row, word in enumerate(column) if word not in place]
        if strange:
            row, word = strange[0]
            some = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            raise RequestError(
                f"{part.where}, row {row}: {name} = {word!r} is no {'class' if key == 'label' else 'client'} of the "
                f"training rows. Expected: {some}"
            )
    return np.array([place[word] for column in columns for word in column], np.int64), tuple(known)
