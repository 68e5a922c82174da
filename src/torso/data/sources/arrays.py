"""Arrays in an .npz file: anybody's, and FEMNIST with its writers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.images import Dataset, Images, as_images
from torso.data.sources.base import MNIST_LIKE, reading, root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

_KEYS = "an .npz file with train_images, train_labels, test_images and test_labels"
_NPZ = f"{_KEYS} (and train_writers, test_writers where known)"
_FEMNIST = f"{_KEYS}, train_writers and test_writers, or a folder with one such femnist*.npz"


@sources.register("npz")
def npz(options: DataConfig, seed: int) -> Dataset:
    """Your own uint8 images: an .npz with train_images, train_labels, test_images, test_labels (and *_writers)."""
    path = root_of(options, _NPZ)
    train, test = read_splits(path, _NPZ)
    top = int(train.labels.max())
    if top >= len(train):
        raise RequestError(
            f"{path}: train label {top} with only {len(train)} images. Expected: classes numbered from 0 up"
        )
    return Dataset(path.stem, train, test, top + 1)


@sources.register("femnist")
def femnist(options: DataConfig, seed: int) -> Dataset:
    """Handwritten characters in 62 classes with their writers, from an .npz file."""
    root = root_of(options, _FEMNIST)
    found = sorted(root.glob("femnist*.npz")) if root.is_dir() else [root]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise RequestError(
            f"data.root = {str(root)!r} holds {len(found)} files femnist*.npz ({names}). Expected: {_FEMNIST}"
        )
    train, test = read_splits(found[0], _FEMNIST)
    if train.writers is None:
        raise RequestError(f"{found[0]} has no train_writers and test_writers. Expected: {_FEMNIST}")
    mean, std = MNIST_LIKE
    return Dataset("femnist", train, test, 62, mean, std)


def read_splits(path: Path, expected: str) -> tuple[Images, Images]:
    arrays = read_npz(path, expected)
    has = [f"{split}_writers" in arrays for split in ("train", "test")]
    if any(has) and not all(has):
        raise RequestError(
            f"{path} has writers for one split only. Expected: both train_writers and test_writers, or neither"
        )
    train, test = (
        as_images(f"{path} {split}", *(arrays.get(f"{split}_{part}") for part in ("images", "labels", "writers")))
        for split in ("train", "test")
    )
    return train, test


def read_npz(path: Path, expected: str, parts: tuple[str, ...] = ("images", "labels")) -> dict[str, np.ndarray]:
    """Every array of the file, none of them pickled; `parts` must be there for both splits."""
    with reading(path, expected):
        archive: Any = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise RequestError(f"{path} is one array, not an archive of arrays. Expected: {expected}")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    missing = [f"{split}_{part}" for split in ("train", "test") for part in parts if f"{split}_{part}" not in arrays]
    if missing:
        raise RequestError(
            f"{path} has no {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}). Expected: {expected}"
        )
    return arrays
