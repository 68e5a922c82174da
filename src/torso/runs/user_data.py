"""Read data for a trained model (files or objects) as the model's kind of input, and tell what was changed in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torso.config import CsvConfig
from torso.data.image_files import SUFFIXES, list_images
from torso.data.inputs import Array, Floats, Pixels, Tokens, is_missing
from torso.data.sources.arrays import read_npz
from torso.data.sources.base import reading
from torso.data.sources.cells import Table
from torso.data.tokenise import are_texts
from torso.data.wants import Tokenizer
from torso.errors import RequestError
from torso.nets.card import Card
from torso.runs.user_images import FittedImage, fitted, read_pictures, remarks_on
from torso.runs.user_texts import (
    LABEL,
    TABLES,
    TEXT,
    UserTexts,
    from_lines,
    from_table,
    of_texts,
    refuse_other_label,
)

_ARRAYS = "an .npz file with images or samples (and labels, where they are known)"
SPLITS = frozenset({"train", "test", "val"})  # names of folders that are not classes


@dataclass(frozen=True, eq=False)
class UserData:
    """Samples for a trained model, as its kind of input stores them."""

    names: tuple[str, ...]  # of the samples: their files, or their numbers from 1
    samples: Array  # [n, *]
    labels: tuple[str, ...] = ()  # the names of their classes, if the data contain them
    remarks: tuple[str, ...] = ()  # what was changed in the data

    def __len__(self) -> int:
        return len(self.names)


def read_user_data(data: Any, card: Card, label: str = LABEL, text: str = TEXT) -> UserData:
    """Files or objects (arrays, Pillow images, a list of texts) as samples for a model.

    `label`: the column of a table that names the classes, if the table has it. `text`: for a model of texts, the column
    of the texts, or several separated by commas."""
    columns = [name.strip() for name in text.split(",")]
    if isinstance(data, str | Path):
        return _read(Path(data), card, label, columns)
    if isinstance(card.input, Tokens) and are_texts(data):
        return _offered(of_texts("data", data, card.input, _tokenizer(card)))
    if isinstance(card.input, Pixels):
        return _of_pictures(_listed(data), card.input)
    samples = card.input.accept("data", data)
    return UserData(_numbers(card.input.noun, len(samples)), samples)


def _tokenizer(card: Card) -> Tokenizer:
    found = card.tokenizer
    if found is None:
        raise RequestError(
            "the model takes token ids and has no tokenizer: turn texts into ids with the one that its training data "
            "were made with"
        )
    return found


def _offered(found: UserTexts) -> UserData:
    return UserData(found.names, found.samples, found.labels, found.remarks)


def _read(path: Path, card: Card, label: str, text: Sequence[str]) -> UserData:
    if not path.exists():
        raise RequestError(f"--data {str(path)!r} does not exist. Expected: {_wanted(card)}")
    if path.suffix.lower() == ".npz":
        return _from_arrays(path, card)
    if isinstance(card.input, Pixels):
        return _from_folder(path, card.input, card.names) if path.is_dir() else _from_image(path, card.input)
    if path.is_dir():
        raise RequestError(f"--data {str(path)!r} is a folder. Expected: {_wanted(card)}")
    if isinstance(card.input, Floats) and path.suffix.lower() in (".csv", ".tsv"):
        return _from_table(path, card.input, label)
    if isinstance(card.input, Tokens) and path.suffix.lower() in TABLES:
        return _offered(from_table(path, _delimiter(path), card.input, _tokenizer(card), label, text))
    if isinstance(card.input, Tokens) and path.suffix.lower() == ".txt":
        tokenizer = card.tokenizer
        return _from_ids(path, card.input) if tokenizer is None else _offered(from_lines(path, card.input, tokenizer))
    raise RequestError(f"--data {str(path)!r} is no file that this model takes. Expected: {_wanted(card)}")


def _wanted(card: Card) -> str:
    """The kinds of files that the model accepts, for messages."""
    if isinstance(card.input, Pixels):
        return f"an image, a folder of images, or an .npz file with images; the model takes {card.input.words}"
    files = "a .csv or .npz file"
    if isinstance(card.input, Tokens):
        texts = "a .txt file with a text on each line, a .csv or .jsonl file with texts"
        files = f"{texts if card.tokenizer else 'a .txt file with token ids'}, or an .npz file"
    return f"{files}; the model takes {card.input.words}"


def _numbers(noun: str, count: int) -> tuple[str, ...]:
    return tuple(f"{noun.removesuffix('s')} {number}" for number in range(1, count + 1))


# images


def _from_image(path: Path, kind: Pixels) -> UserData:
    return _of_fitted([(path.name, read_pictures([path], kind)[0])], kind)


def _from_folder(path: Path, kind: Pixels, known: Sequence[str]) -> UserData:
    """All images below a folder. If every image is in a folder, the folders are the classes."""
    listing = list_images(path)
    images = [file.path for file in listing.files]
    found = list(zip(images, read_pictures(images, kind), strict=True))
    good = [(p.relative_to(path), picture) for p, picture in found if not isinstance(picture, RequestError)]
    broken = [(p.relative_to(path), reason) for p, reason in found if isinstance(reason, RequestError)]
    if not good:
        what = f"{len(broken)} unreadable images" if broken else f"{listing.others} files, none of them an image"
        why = f" ({broken[0][1]})" if broken else f". Expected: images ({', '.join(sorted(SUFFIXES))})"
        raise RequestError(f"--data {str(path)!r} holds {what}{why}")
    made = _of_fitted([(p.as_posix(), picture) for p, picture in good], kind)
    skipped = []
    if broken:
        paths = [p for p, _ in broken]
        skipped.append(f"{_count(len(broken), 'image')} skipped: {_some(paths)}. {broken[0][1]}")
    if listing.others:
        skipped.append(f"{_count(listing.others, 'file')} skipped: no image")
    labels, said = _folder_labels([p.parts[:-1] for p, _ in good], known)
    return UserData(made.names, made.samples, labels, (*made.remarks, *skipped, *said))


def _folder_labels(folders: Sequence[tuple[str, ...]], known: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes of images, by the folders that contain them, and a remark. `folders`: the folders of each image.

    Usually the outermost folder is the class. If no outermost folder is a class of the model, but an innermost one is,
    the innermost folder is the class (the outer ones are then clients)."""
    if not all(folders):
        return (), ()
    outer = tuple(names[0] for names in folders)
    inner = tuple(names[-1] for names in folders)
    if set(outer) & {*known, *SPLITS} or not set(inner) & set(known):
        return outer, ()
    names = sorted(set(outer))
    some = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return inner, (f"the innermost folders are the classes; the folders around them are none of the model: {some}",)


def _some(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:10])) + (" …" if len(paths) > 10 else "")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{' was' if count == 1 else 's were'}"


def _listed(data: Any) -> list[Any]:
    """A list of images. A single Pillow image or a single array [H, W, C] becomes a list of one."""
    if hasattr(data, "convert"):
        return [data]
    if isinstance(data, list | tuple):
        return list(data)
    array = np.asarray(data)
    if array.ndim == 3 and array.shape[-1] in (1, 3):
        return [array]
    return list(Pixels.array("data", array))


def _of_pictures(pictures: Sequence[Any], kind: Pixels, names: Sequence[str] = ()) -> UserData:
    known = names or _numbers("image", len(pictures))
    return _of_fitted([(name, fitted(name, p, kind)) for name, p in zip(known, pictures, strict=True)], kind)


def _of_fitted(found: Sequence[tuple[str, FittedImage | RequestError]], kind: Pixels) -> UserData:
    good = []
    for _, picture in found:
        if isinstance(picture, RequestError):
            raise picture
        good.append(picture)
    samples = kind.accept("data", np.stack([picture.pixels for picture in good]) if good else np.zeros((0, 1, 1), "u1"))
    return UserData(tuple(name for name, _ in found), samples, (), remarks_on(good, kind))


# arrays


def _from_arrays(path: Path, card: Card) -> UserData:
    arrays = read_npz(path, _ARRAYS, parts=())
    key = next((name for name in ("images", "samples") if name in arrays), None)
    if key is None:
        raise RequestError(f"{path} has {', '.join(arrays) or 'nothing'}. Expected: {_ARRAYS}")
    kind, found = card.input, arrays[key]
    if isinstance(kind, Pixels):
        pixels = Pixels.array(str(path), found)
        made = _of_pictures(list(pixels), kind) if pixels.shape[3] in (1, 3) else None
        samples, remarks = (made.samples, made.remarks) if made else (kind.accept(str(path), pixels), ())
    elif isinstance(kind, Tokens):
        samples = kind.accept(str(path), Tokens.array(str(path), found, arrays.get("mask"), kind.pad))
        remarks = ()
    else:
        samples, remarks = kind.accept(str(path), found), ()
    labels = _array_labels(path, arrays, len(samples), card.names)
    return UserData(_numbers(kind.noun, len(samples)), samples, labels, remarks)


def _array_labels(path: Path, arrays: dict[str, Array], count: int, known: Sequence[str]) -> tuple[str, ...]:
    """The class names of labels. Labels that are numbers get the file's class_names, or else those of the model."""
    if "labels" not in arrays:
        return ()
    labels = arrays["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != count:
        raise RequestError(
            f"{path}: labels are {labels.dtype} {list(labels.shape)} for {count} samples. "
            "Expected: a number or a name for each sample, shape [n]"
        )
    if labels.dtype.kind == "U":
        return tuple(labels.tolist())
    names = arrays["class_names"].tolist() if "class_names" in arrays else list(known)
    if labels.min(initial=0) < 0:
        raise RequestError(f"{path}: label {labels.min()} is not a class. Expected: 0 or more")
    return tuple(str(names[label]) if label < len(names) else str(label) for label in labels.tolist())


# tables and texts


def _from_table(path: Path, kind: Floats, label: str) -> UserData:
    table = Table.read(path, CsvConfig(delimiter=_delimiter(path)))
    refuse_other_label(path, label, table.names)
    rows = [dict(zip(table.names, cells, strict=True)) for cells in table.rows]
    if not kind.names:
        kind = _named(path, kind, [name for name in table.names if name != label])
    needed = {_column(name, table) for name in kind.names}
    missing = sorted(needed - set(table.names))
    if missing:
        raise RequestError(f"{path} has no column {', '.join(missing)}. The model needs {', '.join(sorted(needed))}")
    samples = kind.accept(str(path), rows)
    remarks = _remarks_on_table(table, kind, label)
    labels = tuple(table.column(label)) if label in table.names else ()
    return UserData(_numbers("rows", len(rows)), samples, labels, remarks)


def _column(feature: str, table: Table) -> str:
    """The column of a feature: the column of its name, or a column of categories (`city` for `city=Rome`)."""
    return feature if feature in table.names else feature.partition("=")[0]


def _named(path: Path, kind: Floats, columns: list[str]) -> Floats:
    """The input of a model without feature names, with the file's columns in their order as names."""
    if kind.sizes != (len(columns),):
        raise RequestError(f"{path} has {len(columns)} columns of features. The model takes {kind.words}")
    return replace(kind, names=tuple(columns))


def _delimiter(path: Path) -> str:
    """The most frequent of comma, semicolon and tab in the first line."""
    with reading(path, "a table with a line of column names"), path.open(encoding="utf-8-sig") as file:
        first = file.readline()
    return max(",;\t", key=first.count)


def _remarks_on_table(table: Table, kind: Floats, label: str) -> tuple[str, ...]:
    """Remarks about columns that the model does not use, missing cells, and categories unknown to the model."""
    known: dict[str, set[str]] = {}
    for name in kind.names:
        column = _column(name, table)
        known.setdefault(column, set()).add(name.removeprefix(column).removeprefix("="))
    said = []
    aside = [name for name in table.names if name not in known and name != label]
    if aside:
        said.append(f"the model does not use {'column' if len(aside) == 1 else 'columns'} {', '.join(aside)}")
    for column, categories in known.items():
        cells = table.column(column)
        missing = sum(map(is_missing, cells))
        if missing and "" in categories and column in kind.names:
            said.append(f"{column} is missing in {_rows(missing)}: filled with the mean of the training data")
        elif column not in kind.names:
            unknown = sum(("" if is_missing(cell) else cell) not in categories for cell in cells)
            if unknown:
                said.append(f"{column} has a value in {_rows(unknown)} that no training row has")
    return tuple(said)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _from_ids(path: Path, kind: Tokens) -> UserData:
    """The sequences of token ids on the lines of a file. Words are refused, since the model has no tokenizer."""
    with reading(path, "lines of token ids"):
        lines = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if not lines:
        raise RequestError(
            f"{path} has no lines. Expected: token ids with blanks between them, a sequence on each line"
        )
    rows = []
    for number, words in enumerate(lines, 1):
        strange = next((word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 10)), None)
        if strange is not None:
            raise RequestError(
                f"{path}, line {number}: {strange!r} is no token id. Expected: ids from 0 to {kind.vocabulary - 1}. "
                "The model has no tokenizer: turn texts into ids with the one that its training data were made with"
            )
        rows.append([int(word) for word in words])
    longest = max(map(len, rows))
    if longest > kind.length:
        raise RequestError(f"{path} has a line of {longest} tokens. Expected: at most {kind.length}")
    padded = [row + [kind.pad] * (kind.length - len(row)) for row in rows]
    return UserData(_numbers("lines", len(rows)), kind.accept(str(path), np.array(padded, dtype=np.int64)))
