"""Reads the data of one client, in any of the formats that a simulation reads.

Shapes: n samples, F channels or features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torso.data.clients import ClientSamples, train_and_test_of
from torso.data.fit import fitted
from torso.data.fit_images import of_size
from torso.data.formats import SUFFIXES, source_for
from torso.data.images import Dataset, Ints, Labelled, Samples, checked, floats_of_columns, histogram, with_columns
from torso.data.inputs import Array, Floats, Known, Moments, Pixels, known
from torso.data.sources import sources
from torso.data.sources.arrays import dataset_of, has_test_part, read_npz
from torso.data.sources.folder import read_folder
from torso.data.sources.table import FEW
from torso.data.table_columns import Column, Columns, used_columns
from torso.data.texts import Texts
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError, running_user_code
from torso.federation.description import TORCH, TORSO, Description
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig

_FORMATS = (
    "an .npz file with train_images and train_labels (or train_samples), a .csv, .jsonl or .parquet file, a folder "
    "with train.csv and test.csv, or a folder of images CLASS/*.png, in train/ and test/ where both are given"
)
_NEED_A_FILE = {"cifar10", "cifar100", "fashion-mnist", "femnist"}  # sources with special file layouts
_NEED_NONE = {"digits", "given", "synthetic"}  # sources that read no file
MOMENTS = ("count", "total", "squares")
_MOST_CLASSES = 10_000  # if labels have no names: a larger label is taken for an error


@dataclass(frozen=True, eq=False)
class SiteData:
    """The samples of one client as its files have them, with the client's own labels."""

    train: Labelled
    test: Labelled  # may be empty
    classes: tuple[str, ...]  # names; the client's own labels are indices into it
    input: Known  # with mean and std if the files have them
    augment: str = "none"  # the augmentation that the source suggests
    dataset: str = ""  # name of the data, if the file has one
    remarks: tuple[str, ...] = ()  # for the user
    columns: tuple[Column, ...] = ()  # of a table; may have categories that occur in test rows only

    @property
    def told(self) -> SiteData:
        """The data as the server is told of them: without categories that occur in test rows only."""
        return self.in_columns(used_columns(self.train.samples, self.columns)) if self.columns else self

    def in_columns(self, columns: Columns) -> SiteData:
        """The same rows with features made from these columns, which may have other categories in another order."""
        if self.columns == tuple(columns):
            return self
        train, test = (with_columns(part, self.columns, columns) for part in (self.train, self.test))
        return replace(self, train=train, test=test, columns=tuple(columns), input=floats_of_columns(columns))

    def description(self, name: str) -> Description:
        """The description for the server, before the first round."""
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
        """Count, sum and sum of squares of the training samples per channel or feature, float64 [F]; {} for texts.

        The server adds them up over clients. For images they are whole numbers (of bytes from 0 to 255), so the sums
        are exact in any order."""
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
        """Training and test labels as indices into another list of class names; -1 if it does not have the class."""
        index = {name: number for number, name in enumerate(classes)}
        table = np.array([index.get(name, -1) for name in self.classes], dtype=np.int64)
        return table[self.train.labels], table[self.test.labels]

    def within(self, classes: Sequence[str]) -> tuple[SiteData, int]:
        """The samples of these classes only, and the number of training samples that are left out."""
        train, test = self.labels_among(classes)
        kept = replace(
            self, train=self.train.take(np.flatnonzero(train >= 0)), test=self.test.take(np.flatnonzero(test >= 0))
        )
        return kept, len(self.train) - len(kept.train)


def read_site(path: str | Path, options: DataConfig, name: str, wants: Wants = ANYTHING) -> SiteData:
    """Read a client's file or folder. `wants`: what the body expects; texts are tokenised for it.

    If the data have no test part, one is held out at random; the client's name is the key of the draw."""
    found, has_test = _read(Path(path).expanduser(), options, wants)
    _refuse_identifying_categories(found.told)
    if not has_test:
        train, test = train_and_test_of(name, ClientSamples(found.train.samples, found.train.labels), None)
        return replace(found, train=Samples(*train), test=Samples(*test))
    return found


def _refuse_identifying_categories(told: SiteData) -> None:
    """Refuse a column that has almost as many categories as rows, such as a name: categories are sent to the server."""
    for column in told.columns:
        if len(told.train) >= FEW and len(column.categories) > len(told.train) / 2:
            raise RequestError(
                f"column {column.name!r} has {len(column.categories)} different values in {len(told.train)} training "
                f"rows, such as {next(filter(None, column.categories))!r}: as categories they would all be told to the "
                f"server. Expected: numbers without a word among them; or --set data.csv.drop={column.name}"
            )


def read_test(path: str | Path, options: DataConfig, wants: Wants = ANYTHING) -> SiteData:
    """Read a test set for the server: the test part of a file or folder, or all of it if it has no parts."""
    path = Path(path).expanduser()
    found, has_test = _read(path, options, wants, for_test=True)
    test = found.test if has_test else found.train
    if path.suffix.lower() in (".csv", ".jsonl", ".parquet"):  # their source has held out a part of the rows
        samples = np.concatenate([found.train.samples, found.test.samples])
        labels = np.concatenate([found.train.labels, found.test.labels])
        test = Samples(samples, labels)
    return replace(found, train=found.train.take(np.arange(0)), test=test)


def _read(path: Path, options: DataConfig, wants: Wants, for_test: bool = False) -> tuple[SiteData, bool]:
    """The data of a file or folder, and whether they have a test part; if not, all samples are in the training part.

    `for_test`: read only the test part, if there is one."""
    if not path.exists():
        raise RequestError(f"data {str(path)!r} does not exist. Expected: {_FORMATS}")
    source = _format(path, options.source)
    own = options.model_copy(update={"root": str(path), "source": source})
    try:
        dataset, has_test = _load(path, own, for_test)
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
    return found, has_test


def _format(path: Path, source: str) -> str:
    """The source that reads a file or folder.

    It is that of the file's suffix. `data.source` is used if it has a special file layout or is a plugin's, or if the
    suffix is unknown."""
    if source in _NEED_A_FILE or source not in {*_NEED_NONE, *SUFFIXES.values(), "folder"}:
        return source
    found = source_for(path) or (source if source in SUFFIXES.values() else "")
    if found:
        return found
    raise RequestError(f"data {str(path)!r} is a file of no known format. Expected: {_FORMATS}")


def _load(path: Path, options: DataConfig, for_test: bool) -> tuple[Dataset, bool]:
    """The dataset of a source, and whether it has a test part.

    A name that comes from a file name is removed: it would be sent to the server, and may be private."""
    source = options.source
    if source == "folder":
        read = read_folder(path, options, only_test=for_test)
        return replace(read.dataset, name=""), read.parted
    if source == "npz":
        return _read_arrays(path, options, for_test)
    with running_user_code(f"data.source = {source!r}", "a function of (options, seed) that returns a Dataset"):
        found = sources[source](options, 0)
        return (replace(found, name="") if source in SUFFIXES.values() else found), True


def _read_arrays(path: Path, options: DataConfig, for_test: bool) -> tuple[Dataset, bool]:
    """The dataset of an .npz file, and whether it has a test part: the arrays test_*, which may be empty."""
    arrays = read_npz(path, _FORMATS, parts=())
    if for_test and has_test_part(arrays):
        arrays = {key: array for key, array in arrays.items() if not key.startswith("train_")}
        arrays = {re.sub("^test_", "train_", key): array for key, array in arrays.items()}
    parts = {key.removeprefix("train_"): array for key, array in arrays.items() if key.startswith("train_")}
    has_test = has_test_part(arrays)
    empty = has_test and len(np.atleast_1d(arrays.get("test_labels", [0]))) == 0
    if not has_test or empty:  # `dataset_of` needs both parts
        arrays |= {f"test_{part}": array for part, array in parts.items()}
    if "class_names" not in arrays and "train_labels" in arrays:
        arrays["class_names"] = _numbers(path, [arrays[key] for key in arrays if key.endswith("_labels")])
    dataset = dataset_of(path, arrays, options)
    if empty:
        dataset = replace(dataset, test=dataset.train.take(np.arange(0)))
    return (dataset if "name" in arrays else replace(dataset, name="")), has_test


def _numbers(path: Path, labels: Sequence[Array]) -> Array:
    """Class names for labels without names: the numbers up to the largest label."""
    top = max((int(array.max()) for array in labels if array.dtype.kind in "iu" and array.size), default=0)
    if top >= max([_MOST_CLASSES, *map(len, labels)]):
        raise RequestError(f"{path}: there is a label {top}. Expected: classes numbered from 0 up")
    return np.array([str(label) for label in range(top + 1)])
