"""The source `parquet`: columns of numbers and categories, as in a .csv, or a column of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.image_files import Content, decode, remarks_on_broken
from torso.data.images import Dataset, Images, Ints
from torso.data.parted import parted
from torso.data.sources.base import reading, root_of, sources
from torso.data.sources.cells import Table
from torso.data.sources.table import dataset_of_tables, in_order
from torso.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from torso.config import DataConfig

_EXPECTED = "a .parquet file, or a folder with train*.parquet and test*.parquet (or train/ and test/)"
TEST_NAMES = ("test", "validation", "valid", "val")  # the first name that exists is the test part


@sources.register("parquet")
def parquet(options: DataConfig, seed: int) -> Dataset:
    """Your own table in Parquet (needs the extra `parquet`): numbers and categories, a text, or a column of images;
    data.csv names the label, client and text columns."""
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
    """The training files and, if names of files or folders mark a test part, the test files."""
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
    """One split as an Arrow table."""

    where: str  # file or folder, for messages
    table: Any
    local: bool = False  # whether cells may be paths of image files on this machine

    def column(self, key: str, name: str) -> list[Any]:
        """The cells of the column that `data.csv.KEY` names."""
        if name not in self.table.column_names:
            hint = did_you_mean(name, self.table.column_names)
            raise RequestError(
                f"data.csv.{key} = {name!r} is no column of {self.where}{hint} "
                f"Columns: {', '.join(self.table.column_names)}"
            )
        return list(self.table.column(name).to_pylist())

    @property
    def image_column(self) -> str:
        """The name of the first column with images (bytes, or bytes and a path); "" if there is none."""
        from pyarrow import types

        for field in self.table.schema:
            inside = {part.name for part in field.type} if types.is_struct(field.type) else set()
            if inside == {"bytes", "path"} or types.is_binary(field.type) or types.is_large_binary(field.type):
                return str(field.name)
        return ""

    def contents(self, name: str) -> list[Content]:
        """The encoded images of a column."""
        return [self._content(cell) for cell in self.table.column(name).to_pylist()]

    def _content(self, cell: Any) -> Content:
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if content is None and self.local and isinstance(cell, dict) and cell.get("path"):
            return Path(cell["path"])
        return content if isinstance(content, bytes) else b""  # no bytes: reported as an unreadable image

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Column → names of its classes, which Hugging Face's `datasets` writes into the table's metadata."""
        try:
            metadata = json.loads((self.table.schema.metadata or {}).get(b"huggingface", b"{}"))
            features = metadata.get("info", {}).get("features", {})
            return {column: tuple(map(str, about["names"])) for column, about in features.items() if "names" in about}
        except (ValueError, AttributeError, TypeError):
            return {}


def dataset_of_columns(title: str, parts: Sequence[Columns], options: DataConfig) -> Dataset:
    """The data set of a table of training rows and one of test rows; of a single table, a part is held out."""
    image = "" if options.csv.text else parts[0].image_column
    if image:
        return _images(title, parts, image, options)
    return dataset_of_tables(title, [_as_table(part, options) for part in parts], options)


def _as_table(part: Columns, options: DataConfig) -> Table:
    """The cells as a .csv would hold them. Columns of lists and other nested types are refused, unless dropped."""
    from pyarrow import types

    names = part.table.column_names
    how = options.csv
    used = {how.label, how.client, *how.text} if how.text else set(names) - set(how.drop)
    for name in names:
        if name not in used:
            continue
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
    """The cells of a column as text, with the names of classes in place of their numbers."""
    names = part.class_names.get(name, ())
    return ["" if cell is None else _named(cell, names) for cell in part.table.column(name).to_pylist()]


def _named(cell: Any, names: Sequence[str]) -> str:
    """A cell as text: the name of the class if the cell is the number of one."""
    has_name = names and isinstance(cell, int) and 0 <= cell < len(names)
    return names[cell] if has_name else str(cell).strip()


def _images(title: str, parts: Sequence[Columns], image: str, options: DataConfig) -> Dataset:
    """The data set of tables with a column of images."""
    how = options.csv
    contents = [content for part in parts for content in part.contents(image)]
    test = np.repeat(np.arange(len(parts)) == 1, [part.table.num_rows for part in parts])
    label, classes = _numbered(parts, "label", how.label)
    client, clients = _numbered(parts, "client", how.client) if how.client else (np.zeros_like(label), ())
    names = [f"{part.where}, row {row}" for part in parts for row in range(part.table.num_rows)]
    decoded = decode(names, contents, options.size)
    remarks = remarks_on_broken(decoded.broken, options.folder.unreadable, len(contents))
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
    """A column of all parts as places in the list of its values, and this list: the class names of the table if it has
    them, otherwise the classes of the training rows, or the clients of all rows."""
    given = parts[0].class_names.get(name, ())
    columns = [["" if cell is None else _named(cell, given) for cell in part.column(key, name)] for part in parts]
    if key == "client":
        known = in_order({word for column in columns for word in column if word})
    elif given:
        known = list(given)
    else:
        known = in_order({word for word in columns[0] if word})
    place = {word: number for number, word in enumerate(known)}
    for part, column in zip(parts, columns, strict=True):
        strange = [(row, word) for row, word in enumerate(column) if word not in place]
        if strange:
            row, word = strange[0]
            some = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            what = "class" if key == "label" else "client"
            raise RequestError(
                f"{part.where}, row {row}: {name} = {word!r} is no {what} of the training rows. Expected: {some}"
            )
    return np.array([place[word] for column in columns for word in column], np.int64), tuple(known)
