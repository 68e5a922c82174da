"""What the machine of one client has: its own files, in any of the formats that a simulation reads.

n samples, F channels or features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torso.data.clients import ClientSamples, divided_in_two
from torso.data.fit import fitted
from torso.data.fit_images import of_size
from torso.data.formats import SUFFIXES, source_for
from torso.data.images import Dataset, Ints, Labelled, Samples, checked, histogram, in_columns, of_columns
from torso.data.inputs import Array, Floats, Known, Moments, Pixels, known
from torso.data.sources import sources
from torso.data.sources.arrays import dataset_of, has_test_part, read_npz
from torso.data.sources.folder import read_folder
from torso.data.sources.table import FEW
from torso.data.table_columns import Column, Columns, met
from torso.data.texts import Texts
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError, from_outside
from torso.federation.description import TORCH, TORSO, Description
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig

_FORMATS = (
    "an .npz file with train_images and train_labels (or train_samples), a .csv, .jsonl or .parquet file, a folder "
    "with train.csv and test.csv, or a folder of images CLASS/*.png, in train/ and test/ where both are given"
)
_NEED_A_FILE = {"cifar10", "cifar100", "fashion-mnist", "femnist"}  # layouts of their own
_NEED_NONE = {"digits", "given", "synthetic"}
MOMENTS = ("count", "total", "squares")
_MOST_CLASSES = 10_000  # of labels without names: a larger label is a slip


@dataclass(frozen=True, eq=False)
class SiteData:
    """Samples of one client as they are stored, and what its classes are called there."""

    train: Labelled
    test: Labelled  # may be empty
    classes: tuple[str, ...]  # names, by the client's own labels
    input: Known  # with mean and std where the files give them
    augment: str = "none"  # what the source suggests
    dataset: str = ""  # name of the data, where the file gives one
    remarks: tuple[str, ...] = ()  # what a person should know of the data
    columns: tuple[Column, ...] = ()  # of a table: what features were made of; test rows may have categories alone

    @property
    def told(self) -> SiteData:
        """As others are told of it: without categories that only test rows have."""
        return self.in_columns(met(self.train.samples, self.columns)) if self.columns else self

    def in_columns(self, columns: Columns) -> SiteData:
        """With the features of these columns of the same table."""
        if self.columns == tuple(columns):
            return self
        train, test = (in_columns(part, self.columns, columns) for part in (self.train, self.test))
        return replace(self, train=train, test=test, columns=tuple(columns), input=of_columns(columns))

    def description(self, name: str) -> Description:
        """What the server is told before the first round."""
        return Description(
            name=name,
            torso=TORSO,
            torch=TORCH,
            classes=self.classes,
            input=self.told.input,
            columns=self.told.columns,
            train_samples=len(self.train),
            test_samples=len(self.test),
            augment=self.augment,
            dataset=self.dataset,
        )

    @property
    def moments(self) -> Tensors:
        """Count, total and squares of the training samples, float64 [F], which add up to those of all clients.

        Of images they are whole numbers, of bytes from 0 to 255: sums of these are exact, in whatever order."""
        if isinstance(self.input, Pixels):
            levels = np.arange(256)
            sums: Sequence[Any] = [histogram(self.train.samples) @ of for of in (levels**0, levels, levels**2)]
        elif isinstance(self.input, Floats):
            found = Moments.of(self.told.train.samples)
            sums = np.full(len(found.total), found.count), found.total, found.squares
        else:
            return {}
        return {name: torch.from_numpy(part.astype(np.float64)) for name, part in zip(MOMENTS, sums, strict=True)}

    def labels_among(self, classes: Sequence[str]) -> tuple[Ints, Ints]:
        """Training and test labels as places in a list of class names; −1 where the list does not have the class."""
        place = {name: number for number, name in enumerate(classes)}
        table = np.array([place.get(name, -1) for name in self.classes], dtype=np.int64)
        return table[self.train.labels], table[self.test.labels]

    def within(self, classes: Sequence[str]) -> tuple[SiteData, int]:
        """Only what is of these classes, and how many training samples that leaves out."""
        train, test = self.labels_among(classes)
        kept = replace(
            self, train=self.train.take(np.flatnonzero(train >= 0)), test=self.test.take(np.flatnonzero(test >= 0))
        )
        return kept, len(self.train) - len(kept.train)


def read_site(path: str | Path, options: DataConfig, name: str, wants: Wants = ANYTHING) -> SiteData:
    """What lies at `path`, texts tokenised as a body wants it. Where no part of it is for testing, a part is held out,
    drawn by the client's name."""
    found, parted = _read(Path(path).expanduser(), options, wants)
    _refuse_words_of_rows(found.told)
    if not parted:
        train, test = divided_in_two(name, ClientSamples(found.train.samples, found.train.labels), None)
        return replace(found, train=Samples(*train), test=Samples(*test))
    return found


def _refuse_words_of_rows(told: SiteData) -> None:
    """Categories are told to the server: those of a column that tells rows apart, such as a name, must not be."""
    for column in told.columns:
        if len(told.train) >= FEW and len(column.categories) > len(told.train) / 2:
            raise RequestError(
                f"column {column.name!r} has {len(column.categories)} different values in {len(told.train)} training "
                f"rows, such as {next(filter(None, column.categories))!r}: as categories they would all be told to the "
                f"server. Expected: numbers without a word among them; or --set data.csv.drop={column.name}"
            )


def read_test(path: str | Path, options: DataConfig, wants: Wants = ANYTHING) -> SiteData:
    """A test set for the server: what at `path` is for testing, or all of it where it does not say."""
    path = Path(path).expanduser()
    found, parted = _read(path, options, wants, for_test=True)
    test = found.test if parted else found.train
    if path.suffix.lower() in (".csv", ".jsonl", ".parquet"):  # whose source holds rows out
        both = found.train, found.test
        test = Samples(*(np.concatenate([getattr(part, of) for part in both]) for of in ("samples", "labels")))
    return replace(found, train=found.train.take(np.arange(0)), test=test)


def _read(path: Path, options: DataConfig, wants: Wants, for_test: bool = False) -> tuple[SiteData, bool]:
    """What is there, and whether it says what is for testing; if not, all of it is in the training part.

    `for_test`: what is for testing is all that is looked at, where it can be told apart."""
    if not path.exists():
        raise RequestError(f"data {str(path)!r} does not exist. Expected: {_FORMATS}")
    source = _format(path, options.source)
    own = options.model_copy(update={"root": str(path), "source": source})
    try:
        dataset, parted = _load(path, own, for_test)
    except MemoryError as error:
        raise RequestError(f"data {str(path)!r} do not fit into memory: {error}") from None
    if not len(dataset.train):
        raise RequestError(f"{path} has no training samples. Expected: at least one")
    tested = bool(len(dataset.test))
    whole = checked(dataset if tested else replace(dataset, test=dataset.train), f"data {str(path)!r}")
    whole = of_size(whole, own.size) if own.size else whole
    whole = fitted(whole, own, wants) if isinstance(whole.kind, Texts) else whole
    found = SiteData(
        train=whole.train,
        test=whole.test if tested else whole.train.take(np.arange(0)),
        classes=whole.class_names or tuple(map(str, range(whole.classes))),
        input=known(whole.kind),
        augment=whole.augment,
        dataset=whole.name,
        remarks=whole.remarks,
        columns=whole.columns,
    )
    return found, parted


def _format(path: Path, source: str) -> str:
    """Of the file or folder; `data.source` where it names a layout of its own, or the file does not show it."""
    if source in _NEED_A_FILE or source not in {*_NEED_NONE, *SUFFIXES.values(), "folder"}:
        return source
    found = source_for(path) or (source if source in SUFFIXES.values() else "")
    if found:
        return found
    raise RequestError(f"data {str(path)!r} is a file of no known format. Expected: {_FORMATS}")


def _load(path: Path, options: DataConfig, for_test: bool) -> tuple[Dataset, bool]:
    """What the source gives, and whether it says what is for testing.

    The name of a file is nobody's business: it may say more than its owner wants."""
    source = options.source
    if source == "folder":
        read = read_folder(path, options, only_test=for_test)
        return replace(read.dataset, name=""), read.parted
    if source == "npz":
        return _read_arrays(path, options, for_test)
    with from_outside(f"data.source = {source!r}", "a function of (options, seed) that returns a Dataset"):
        found = sources[source](options, 0)
        return (replace(found, name="") if source in SUFFIXES.values() else found), True


def _read_arrays(path: Path, options: DataConfig, for_test: bool) -> tuple[Dataset, bool]:
    """A file without test_* has its test part held out; one with empty test_* has none."""
    arrays = read_npz(path, _FORMATS, parts=())
    if for_test and has_test_part(arrays):
        arrays = {key: array for key, array in arrays.items() if not key.startswith("train_")}
        arrays = {re.sub("^test_", "train_", key): array for key, array in arrays.items()}
    parts = {key.removeprefix("train_"): array for key, array in arrays.items() if key.startswith("train_")}
    parted = has_test_part(arrays)
    empty = parted and len(np.atleast_1d(arrays.get("test_labels", [0]))) == 0
    if not parted or empty:  # the source wants both
        arrays |= {f"test_{part}": array for part, array in parts.items()}
    if "class_names" not in arrays and "train_labels" in arrays:
        arrays["class_names"] = _numbers(path, [arrays[key] for key in arrays if key.endswith("_labels")])
    dataset = dataset_of(path, arrays, options)
    if empty:
        dataset = replace(dataset, test=dataset.train.take(np.arange(0)))
    return (dataset if "name" in arrays else replace(dataset, name="")), parted


def _numbers(path: Path, labels: Sequence[Array]) -> Array:
    """Names of classes that have none: numbers, up to the largest label. A client may have few samples of many."""
    top = max((int(array.max()) for array in labels if array.dtype.kind in "iu" and array.size), default=0)
    if top >= max([_MOST_CLASSES, *map(len, labels)]):
        raise RequestError(f"{path}: there is a label {top}. Expected: classes numbered from 0 up")
    return np.array([str(label) for label in range(top + 1)])
