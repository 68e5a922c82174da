"""`Dataset`: labelled samples in a training and a test split, as a source returns them, and their checks (spec 10.5).

n samples. Images are the usual kind, [n, H, W, C] with H × W pixels and C channels. Pixels stay uint8 until they become
network input. Other kinds: inputs.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from torso.data.inputs import Array, Floats, Input, Known, Pixels, Tokens
from torso.data.table_columns import Column, Columns, features_of, rearranged_features, used_columns
from torso.data.texts import Texts
from torso.errors import RequestError

Ints = NDArray[np.int64]

_PIXELS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Images:
    """One split of images with their labels."""

    images: NDArray[np.uint8]  # [n, H, W, C]
    labels: Ints  # [n]
    writers: Ints | None = None  # [n]: number of the client that each image belongs to, if the data know it

    @property
    def samples(self) -> Array:
        return self.images

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ints) -> Images:
        """The same split with only these rows, in this order."""
        return Images(self.images[rows], self.labels[rows], None if self.writers is None else self.writers[rows])


@dataclass(frozen=True, eq=False)
class Samples:
    """One split of samples of any other kind, with their labels."""

    samples: Array  # [n, *]
    labels: Ints  # [n]
    writers: Ints | None = None  # [n]: number of the client that each sample belongs to, if the data know it
    origins: Ints | None = None  # [n]: checksums of the samples that an encoder made these features from

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ints) -> Samples:
        """The same split with only these rows, in this order."""
        writers = None if self.writers is None else self.writers[rows]
        origins = None if self.origins is None else self.origins[rows]
        return Samples(self.samples[rows], self.labels[rows], writers, origins)


Labelled = Images | Samples
"""One split of samples of any kind."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split with everything that their source knows of them."""

    name: str
    train: Labelled
    test: Labelled
    classes: int
    mean: tuple[float, ...] = ()  # images: per channel on the 0..1 scale (spec 10.6); other arrays: per feature
    std: tuple[float, ...] = ()  # empty mean and std: those of the training samples
    augment: str = "none"  # the meaning of data.augment = "auto"
    superclasses: tuple[int, ...] = ()  # of each class, if there are any
    input: Input | None = None  # the kind of sample; None: images or arrays of numbers, depending on the arrays
    names: tuple[str, ...] = ()  # of the writers (clients), by number, if they have names
    remarks: tuple[str, ...] = ()  # sentences about the data that the user should read before the first round
    class_names: tuple[str, ...] = ()  # by class number, if the source knows them
    columns: tuple[Column, ...] = ()  # columns that features were made of, with categories that only test rows have

    @property
    def kind(self) -> Input:
        """The kind of sample. Only a checked data set has one (see `checked`)."""
        assert self.input is not None
        return self.input


def without_unused_categories(dataset: Dataset) -> Dataset:
    """The data set without features for categories that only test rows have: no weight would be trained for them."""
    columns = used_columns(dataset.train.samples, dataset.columns)
    if columns == dataset.columns:
        return dataset
    train, test = (with_columns(part, dataset.columns, columns) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, columns=columns, input=floats_of_columns(columns))


def with_columns(part: Labelled, have: Columns, want: Columns) -> Labelled:
    """A split of a table's rows, its features rearranged from the columns `have` to the columns `want`."""
    return Samples(rearranged_features(part.samples, have, want), part.labels, part.writers)


def floats_of_columns(columns: Columns) -> Floats:
    """The kind of a table's rows, with mean and std not known yet."""
    names = features_of(columns)
    return Floats((len(names),), names=names)


def as_images(where: str, images: Any, labels: Any, writers: Any = None) -> Images:
    """One split of images from arrays of unknown origin; `where` is the file and split that a message names."""
    pixels = Pixels.array(where, images)
    return Images(pixels, *_labels_and_writers(where, "image", len(pixels), labels, writers))


def as_samples(where: str, samples: Array, labels: Any, writers: Any = None) -> Samples:
    """One split of samples that their kind has accepted, with labels and writers of unknown origin."""
    return Samples(samples, *_labels_and_writers(where, "sample", len(samples), labels, writers))


def _labels_and_writers(where: str, noun: str, count: int, labels: Any, writers: Any) -> tuple[Ints, Ints | None]:
    """Labels and writers as integers, one for each of `count` samples."""
    given = {"labels": labels, "writers": writers}
    whole = {name: _whole(where, name, values) for name, values in given.items() if values is not None}
    for name, values in whole.items():
        if len(values) != count:
            raise RequestError(f"{where}: {count} {noun}s but {len(values)} {name}. Expected: one for each {noun}")
    return whole["labels"], whole.get("writers")


def _whole(where: str, name: str, values: Any) -> Ints:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError(f"{where}: {name} are {array.dtype} {list(array.shape)}. Expected: integers, shape [n]")
    return array.astype(np.int64)


def checked(dataset: Any, where: str) -> Dataset:
    """A source's data set with its arrays converted to the formats that Torso uses, or a RequestError.

    `where` is the key that named the source. Refused: another type, samples that are not of one kind and size, labels
    that are not integers from 0 to classes − 1, splits or constants that do not fit each other."""
    if not isinstance(dataset, Dataset):
        _refuse_type(where, type(dataset).__name__)
    if not all(isinstance(part, Labelled) for part in (dataset.train, dataset.test)):
        _refuse_type(where, f"a Dataset of {type(dataset.train).__name__}")
    if not isinstance(dataset.input, Known | Texts | None):
        raise RequestError(
            f"{where} gave input = {dataset.input!r}. Expected: Pixels, Floats, Tokens or Texts, or None"
        )
    (train, kind), (test, other) = (
        _checked_part(f"{where}, {split}", part, dataset.input)
        for split, part in (("train", dataset.train), ("test", dataset.test))
    )
    _check_labels(where, train, test, dataset.classes, kind.noun.removesuffix("s"))
    if len(dataset.class_names) not in (0, dataset.classes):
        raise RequestError(
            f"{where} names {len(dataset.class_names)} of {dataset.classes} classes. Expected: a name for each, or none"
        )
    if kind != other:
        raise RequestError(
            f"{where}: train {kind.noun} are {kind.size} but test {other.noun} {other.size}. Expected: one size"
        )
    return replace(dataset, train=train, test=test, input=_with_constants(where, kind, dataset))


def _refuse_type(where: str, found: str) -> NoReturn:
    raise RequestError(
        f"{where} gave {found}. Expected: torso.data.images.Dataset(name, train, test, classes) whose train and "
        "test are Images(images, labels), or Samples(samples, labels) if they are no images"
    )


def _checked_part(where: str, part: Labelled, kind: Input | None) -> tuple[Labelled, Known | Texts]:
    """A split in the stored format, and its kind: the given one, or the kind that the array's dtype implies."""
    if isinstance(kind, Texts):
        return as_samples(where, kind.accept(where, part.samples), part.labels, part.writers), kind
    found = np.asarray(part.samples)
    if kind is None and found.dtype.kind in "iu" and found.dtype != np.uint8 and not isinstance(part, Images):
        raise RequestError(
            f"{where}: samples are {found.dtype} {list(found.shape)}, and integers may be token ids or numbers. "
            "Expected: input = Tokens(length, vocabulary, pad) in the Dataset, or a float dtype"
        )
    if isinstance(part, Images) or isinstance(kind, Pixels) or (kind is None and found.dtype == np.uint8):
        images = as_images(where, part.samples, part.labels, part.writers)
        return images, Pixels.of(images.images)
    if isinstance(kind, Tokens):
        return as_samples(where, kind.accept(where, found), part.labels, part.writers), kind
    numbers = Floats.array(where, found)
    names = kind.names if isinstance(kind, Floats) else ()
    return as_samples(where, numbers, part.labels, part.writers), Floats(numbers.shape[1:], names=names)


def _with_constants(where: str, kind: Known | Texts, dataset: Dataset) -> Input:
    """The kind with the mean and std of the source, if it has given them."""
    mean, std = dataset.mean, dataset.std
    if isinstance(dataset.input, Pixels | Floats) and not mean:
        mean, std = dataset.input.mean, dataset.input.std
    if isinstance(kind, Tokens | Texts):
        return kind
    if isinstance(kind, Floats) and len(kind.names) not in (0, kind.sizes[0]):
        raise RequestError(
            f"{where}: {len(kind.names)} names of features for {kind.words}. Expected: one for each feature, or none"
        )
    count = kind.shape[0]
    part = "channel" if isinstance(kind, Pixels) else "feature"
    if len(mean) != len(std) or len(mean) not in (0, count):
        raise RequestError(
            f"{where}: mean = {mean} and std = {std} of {kind.noun} with {count} {part}s. "
            f"Expected: a number for each {part}, or () for those of the training {kind.noun}"
        )
    return replace(kind, mean=mean, std=std)


def _check_labels(where: str, train: Labelled, test: Labelled, classes: int, noun: str) -> None:
    for split, part in (("train", train), ("test", test)):
        wrong = np.flatnonzero((part.labels < 0) | (part.labels >= classes))
        if len(wrong):
            raise RequestError(
                f"{where}: {split} label {part.labels[wrong[0]]} ({noun} {wrong[0]}) is not a class. "
                f"Expected: 0 to {classes - 1}"
            )


def none_of_class_0(train: Labelled, test: Labelled) -> tuple[str, ...]:
    """A remark if labels begin above 0: class 0 then has no samples, but the network still has an output for it."""
    least = min(int(train.labels.min()), int(test.labels.min()))
    if least < 1:
        return ()
    return (f"the smallest label is {least}, and classes count from 0: no sample has class 0. Expected: labels from 0",)


def histogram(images: NDArray[np.uint8]) -> Ints:
    """The number of pixels with each value in each channel, [C, 256]."""
    channels = images.shape[-1]
    step = max(1, _PIXELS_AT_ONCE // max(1, images[0].size))
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), step):
        for c in range(channels):
            counts[c] += np.bincount(images[start : start + step, ..., c].ravel(), minlength=256)
    return counts


def statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on the 0..1 scale, from a histogram; a constant channel has std 1."""
    counts = histogram(images)
    levels = np.arange(256) / 255
    weights = counts / counts.sum(1, keepdims=True)
    mean = weights @ levels
    std = np.sqrt((weights * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-9, std, 1.0).tolist())
