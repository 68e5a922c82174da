"""What a source gives: labelled images in two splits, checked once, before anything else looks at them (spec 10.5).

n images, H × W pixels, C channels; pixels stay uint8 until they meet a network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torso.errors import RequestError

Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]

_PIXELS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Images:
    """One split. `writers` says who made each image, where the data know it."""

    images: Pixels  # [n, H, W, C]
    labels: Ints  # [n]
    writers: Ints | None = None  # [n]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ints) -> Images:
        """The same split with only these rows, in this order."""
        return Images(self.images[rows], self.labels[rows], None if self.writers is None else self.writers[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Both splits and their constants; empty `mean` and `std` stand for those of the training images."""

    name: str
    train: Images
    test: Images
    classes: int
    mean: tuple[float, ...] = ()  # per channel, on the 0..1 scale (spec 10.6)
    std: tuple[float, ...] = ()
    augment: str = "none"  # what data.augment = "auto" stands for
    superclasses: tuple[int, ...] = ()  # of each class, where there are any


def as_images(where: str, images: Any, labels: Any, writers: Any = None) -> Images:
    """One split from arrays of unknown origin; `where` is the file and split that a message names."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8 or images.ndim not in {3, 4} or 0 in images.shape[1:]:
        raise RequestError(
            f"{where}: images are {images.dtype} {list(images.shape)}. "
            "Expected: uint8 (0 to 255), shape [n, height, width] or [n, height, width, channels]"
        )
    if not len(images):
        raise RequestError(f"{where}: there are no images. Expected: at least one")
    whole = {name: _whole(where, name, a) for name, a in (("labels", labels), ("writers", writers)) if a is not None}
    for name, values in whole.items():
        if len(values) != len(images):
            raise RequestError(f"{where}: {len(images)} images but {len(values)} {name}. Expected: one for each image")
    pixels = np.ascontiguousarray(images if images.ndim == 4 else images[..., None])
    return Images(pixels, whole["labels"], whole.get("writers"))


def _whole(where: str, name: str, values: Any) -> Ints:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError(f"{where}: {name} are {array.dtype} {list(array.shape)}. Expected: integers, shape [n]")
    return array.astype(np.int64)


def checked(dataset: Any, where: str) -> Dataset:
    """What a source gave, with arrays as the rest of Torso wants them, or why it cannot be used.

    `where` is the key that named the source. Refused: another type, images that are not uint8, labels that are not
    integers from 0 to classes − 1, splits or constants that do not fit each other."""
    if not isinstance(dataset, Dataset) or not all(isinstance(part, Images) for part in (dataset.train, dataset.test)):
        found = (
            f"a Dataset of {type(dataset.train).__name__}" if isinstance(dataset, Dataset) else type(dataset).__name__
        )
        raise RequestError(
            f"{where} gave {found}. Expected: torso.data.images.Dataset(name, train, test, classes) whose train and "
            "test are Images(images, labels)"
        )
    train, test = (
        as_images(f"{where}, {split}", part.images, part.labels, part.writers)
        for split, part in (("train", dataset.train), ("test", dataset.test))
    )
    _check_labels(where, train, test, dataset.classes)
    sizes = train.images.shape[1:], test.images.shape[1:]
    if sizes[0] != sizes[1]:
        raise RequestError(
            f"{where}: train images are {_size(sizes[0])} but test images {_size(sizes[1])}. Expected: one size"
        )
    channels = sizes[0][-1]
    if len(dataset.mean) != len(dataset.std) or len(dataset.mean) not in (0, channels):
        raise RequestError(
            f"{where}: mean = {dataset.mean} and std = {dataset.std} of images with {channels} channels. "
            "Expected: a number for each channel, or () for those of the training images"
        )
    return replace(dataset, train=train, test=test)


def _check_labels(where: str, train: Images, test: Images, classes: int) -> None:
    for split, part in (("train", train), ("test", test)):
        wrong = np.flatnonzero((part.labels < 0) | (part.labels >= classes))
        if len(wrong):
            raise RequestError(
                f"{where}: {split} label {part.labels[wrong[0]]} (image {wrong[0]}) is not a class. "
                f"Expected: 0 to {classes - 1}"
            )


def _size(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{height}×{width} with {channels} channel{'s' if channels > 1 else ''}"


def statistics(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on the 0..1 scale, from a histogram; a constant channel has std 1."""
    channels = images.shape[-1]
    step = max(1, _PIXELS_AT_ONCE // max(1, images[0].size))
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), step):
        for c in range(channels):
            counts[c] += np.bincount(images[start : start + step, ..., c].ravel(), minlength=256)
    levels, weights = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = weights @ levels
    std = np.sqrt((weights * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-9, std, 1.0).tolist())
