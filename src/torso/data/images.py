"""What a source gives: labelled images in two splits, checked once, before anything else looks at them (spec 10.5).

n images, H × W pixels, C channels; pixels stay uint8 until they meet a network.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def check(dataset: Dataset) -> None:
    """Refuse labels outside 0..classes−1 and splits that do not fit each other."""
    for split, part in (("train", dataset.train), ("test", dataset.test)):
        wrong = np.flatnonzero((part.labels < 0) | (part.labels >= dataset.classes))
        if len(wrong):
            raise RequestError(
                f"{dataset.name}: {split} label {part.labels[wrong[0]]} (image {wrong[0]}) is not a class. "
                f"Expected: 0 to {dataset.classes - 1}"
            )
    train, test = dataset.train.images.shape[1:], dataset.test.images.shape[1:]
    if train != test:
        raise RequestError(
            f"{dataset.name}: train images are {_size(train)} but test images {_size(test)}. Expected: one size"
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
