"""Sources that need no file: `digits` of scikit-learn, and `synthetic` Gaussian clusters of any size."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torso.data.images import Dataset, Images, Ints
from torso.data.rows import Rows
from torso.data.sources.base import sources
from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import DataConfig

_PIXELS_AT_ONCE = 1 << 22


@sources.register("digits")
def digits(options: DataConfig, seed: int) -> Dataset:
    """1,797 handwritten digits of 8×8 pixels from scikit-learn; the split is the same for every seed."""
    pixels, labels = _digits_of_sklearn()
    images = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[..., None]
    whole = Images(images, labels.astype(np.int64))
    by_class = Rows.from_owner(whole.labels, 10)
    rank = np.empty(len(whole), np.int64)  # the place of each image within its class
    rank[by_class.order] = np.arange(len(whole)) - np.repeat(by_class.offsets[:-1], by_class.sizes)
    test = rank % 5 == 4
    return Dataset("digits", whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test)), classes=10)


@cache  # reading takes 20 ms, which every run of a comparison would pay
def _digits_of_sklearn() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels [n, 64] from 0 to 16 and labels [n]. They are read from scikit-learn's file without importing it, because
    the import takes a second."""
    spec = find_spec("sklearn")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits  # a version that keeps the file elsewhere

    raw = load_digits()
    return raw.data, raw.target


@sources.register("synthetic")
def synthetic(options: DataConfig, seed: int) -> Dataset:
    """One random image per class plus Gaussian noise, of any size (`data.synthetic`)."""
    want = options.synthetic
    shape = (want.classes, want.size, want.size, want.channels)
    prototypes = numpy_generator(seed, "synthetic", "prototypes").random(shape, dtype=np.float32)

    def make(split: str, count: int) -> Images:
        labels = np.arange(count, dtype=np.int64) % want.classes
        images = np.empty((count, *shape[1:]), np.uint8)
        rng = numpy_generator(seed, "synthetic", split)
        step = max(1, _PIXELS_AT_ONCE // prototypes[0].size)
        for start in range(0, count, step):
            images[start : start + step] = _noisy(prototypes, labels[start : start + step], want.noise, rng)
        return Images(images, labels)

    return Dataset("synthetic", make("train", want.samples), make("test", want.test_samples), want.classes)


def _noisy(prototypes: NDArray[np.float32], labels: Ints, noise: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """An image for each label: the prototype of its class plus noise."""
    images: NDArray[np.float32] = prototypes[labels]
    images += np.float32(noise) * rng.standard_normal(images.shape, dtype=np.float32)
    pixels: NDArray[np.uint8] = np.rint(images.clip(0, 1) * 255).astype(np.uint8)
    return pixels
