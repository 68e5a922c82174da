"""What a source gives: labelled samples in two splits, checked once, before anything else looks at them (spec 10.5).

n samples. Images are the usual kind, [n, H, W, C] with H × W pixels and C channels; pixels stay uint8 until they meet a
network. Other kinds: inputs.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torso.data.inputs import Array, Floats, Input, Known, Pixels, Tokens
from torso.data.table_columns import Column, Columns, arranged, features_of, met
from torso.data.texts import Texts
from torso.errors import RequestError

Ints = NDArray[np.int64]

_PIXELS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Images:
    """One split of images. `writers` says who made each image, where the data know it."""

    images: NDArray[np.uint8]  # [n, H, W, C]
    labels: Ints  # [n]
    writers: Ints | None = None  # [n]

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
    """One split of any other kind. `writers` says who each sample belongs to, where the data know it; `origins` has a
    checksum of what each sample was made from, where an encoder has made it."""

    samples: Array  # [n, *]
    labels: Ints  # [n]
    writers: Ints | None = None  # [n]
    origins: Ints | None = None  # [n]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ints) -> Samples:
        """The same split with only these rows, in this order."""
        writers, origins = (None if each is None else each[rows] for each in (self.writers, self.origins))
        return Samples(self.samples[rows], self.labels[rows], writers, origins)


Labelled = Images | Samples
"""One split, of whatever kind."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Both splits and their constants; empty `mean` and `std` stand for those of the training samples."""

    name: str
    train: Labelled
    test: Labelled
    classes: int
    mean: tuple[float, ...] = ()  # of images per channel, on the 0..1 scale (spec 10.6); of other arrays per feature
    std: tuple[float, ...] = ()
    augment: str = "none"  # what data.augment = "auto" stands for
    superclasses: tuple[int, ...] = ()  # of each class, where there are any
    input: Input | None = None  # the kind of sample; None: what the arrays say, images or arrays of numbers
    names: tuple[str, ...] = ()  # of the writers, by their number, where they have any
    remarks: tuple[str, ...] = ()  # what a person should know of the data before the first round
    class_names: tuple[str, ...] = ()  # by their number, where the source knows them
    columns: tuple[Column, ...] = ()  # that features were made of, with categories that only test rows have

    @property
    def kind(self) -> Input:
        """The kind of sample, of a data set that is checked."""
        assert self.input is not None
        return self.input


def without_unmet(dataset: Dataset) -> Dataset:
    """Without the features of categories that only test rows have: nothing is learned of them."""
    columns = met(dataset.train.samples, dataset.columns)
    if columns == dataset.columns:
        return dataset
    train, test = (in_columns(part, dataset.columns, columns) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, columns=columns, input=of_columns(columns))


def in_columns(part: Labelled, have: Columns, want: Columns) -> Labelled:
    """A split of a table's rows with the features of other columns."""
    return Samples(arranged(part.samples, have, want), part.labels, part.writers)


def of_columns(columns: Columns) -> Floats:
    """The kind of a table's rows, with mean and std not settled yet."""
    names = features_of(columns)
    return Floats((len(names),), names=names)


def as_images(where: str, images: Any, labels: Any, writers: Any = None) -> Images:
    """One split from arrays of unknown origin; `where` is the file and split that a message names."""
    pixels = Pixels.array(where, images)
    return Images(pixels, *_owned(where, "image", len(pixels), labels, writers))


def as_samples(where: str, samples: Array, labels: Any, writers: Any = None) -> Samples:
    """One split of samples that their kind has accepted, with labels and writers of unknown origin."""
    return Samples(samples, *_owned(where, "sample", len(samples), labels, writers))


def _owned(where: str, noun: str, count: int, labels: Any, writers: Any) -> tuple[Ints, Ints | None]:
    """Labels and writers as integers, one for each of the samples."""
    whole = {name: _whole(where, name, a) for name, a in (("labels", labels), ("writers", writers)) if a is not None}
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
    """What a source gave, with arrays as the rest of Torso wants them, or why it cannot be used.

    `where` is the key that named the source. Refused: another type, samples that are not of one kind and size, labels
    that are not integers from 0 to classes − 1, splits or constants that do not fit each other."""
    if not isinstance(dataset, Dataset) or not all(
        isinstance(part, Labelled) for part in (dataset.train, dataset.test)
    ):
        found = (
            f"a Dataset of {type(dataset.train).__name__}" if isinstance(dataset, Dataset) else type(dataset).__name__
        )
        raise RequestError(
            f"{where} gave {found}. Expected: torso.data.images.Dataset(name, train, test, classes) whose train and "
            "test are Images(images, labels), or Samples(samples, labels) where they are no images"
        )
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


def _checked_part(where: str, part: Labelled, kind: Input | None) -> tuple[Labelled, Known | Texts]:
    """A split as it is stored, and its kind: the given one, or what the array says."""
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
    """The kind with the mean and std that the source has given, if any."""
    mean, std = dataset.mean, dataset.std
    if isinstance(dataset.input, Pixels | Floats) and not mean:
        mean, std = dataset.input.mean, dataset.input.std
    if isinstance(kind, Tokens | Texts):
        return kind
    if isinstance(kind, Floats) and len(kind.names) not in (0, kind.sizes[0]):
        raise RequestError(
            f"{where}: {len(kind.names)} names of features for {kind.words}. Expected: one for each feature, or none"
        )
    count, of = kind.shape[0], "channel" if isinstance(kind, Pixels) else "feature"
    if len(mean) != len(std) or len(mean) not in (0, count):
        raise RequestError(
            f"{where}: mean = {mean} and std = {std} of {kind.noun} with {count} {of}s. "
            f"Expected: a number for each {of}, or () for those of the training {kind.noun}"
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
    """A remark on labels that were counted from 1: they make a class that nobody has, and the network an output."""
    least = min(int(train.labels.min()), int(test.labels.min()))
    if least < 1:
        return ()
    return (f"the smallest label is {least}, and classes count from 0: nobody has class 0. Expected: labels from 0",)


def histogram(images: NDArray[np.uint8]) -> Ints:
    """How often each channel has each value, [C, 256]."""
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
    levels, weights = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = weights @ levels
    std = np.sqrt((weights * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-9, std, 1.0).tolist())
