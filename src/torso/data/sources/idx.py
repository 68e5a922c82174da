"""The sources `mnist`, `fashion-mnist` and `kmnist`: IDX files, plain or gzip'd, as their authors and Debian distribute
them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.fetch_catalogue import hint
from torso.data.images import Dataset, Images, as_images
from torso.data.sources.base import MNIST_LIKE, read_bytes, reading, root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

DEBIAN = "/usr/share/datasets/fashion-mnist"
_FILES = (
    "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte, plain or .gz"
)


@sources.register("fashion-mnist")
def fashion_mnist(options: DataConfig, seed: int) -> Dataset:
    """Fashion-MNIST: 60,000 / 10,000 images of 28×28 in 10 classes, from IDX files (Debian: dataset-fashion-mnist)."""
    return _load(options, " (Debian: apt-get install dataset-fashion-mnist)", usual=DEBIAN)


@sources.register("mnist")
def mnist(options: DataConfig, seed: int) -> Dataset:
    """MNIST: 60,000 / 10,000 handwritten digits of 28×28 in 10 classes, from IDX files."""
    return _load(options)


@sources.register("kmnist")
def kmnist(options: DataConfig, seed: int) -> Dataset:
    """Kuzushiji-MNIST: 60,000 / 10,000 Japanese characters of 28×28 in 10 classes, from IDX files."""
    return _load(options)


def _load(options: DataConfig, more: str = "", usual: str = "") -> Dataset:
    expected = f"{_FILES}{more}{hint(options.source)}"
    root = root_of(options, expected, usual)
    mean, std = MNIST_LIKE
    train, test = (_split(root, prefix, expected) for prefix in ("train", "t10k"))
    return Dataset(options.source, train, test, 10, mean, std)


def _split(root: Path, prefix: str, expected: str) -> Images:
    images = read_idx(root / f"{prefix}-images-idx3-ubyte", 3, expected)
    labels = read_idx(root / f"{prefix}-labels-idx1-ubyte", 1, expected)
    return as_images(f"{root} {prefix}", images, labels)


def read_idx(plain: Path, dimensions: int, expected: str) -> np.ndarray:
    """The array of one IDX file, plain or .gz."""
    path = plain if plain.exists() else plain.with_name(f"{plain.name}.gz")
    with reading(path, expected):
        raw = read_bytes(path)
    return parse_idx(raw, path, dimensions)


def parse_idx(raw: bytes, path: Path | str, dimensions: int) -> np.ndarray:
    """The array of an IDX file of unsigned bytes: magic number 0x0800 + dimensions, sizes, exactly as many bytes."""
    start = 4 + 4 * dimensions  # of the data
    magic = 0x0800 + dimensions
    if len(raw) < start or int.from_bytes(raw[:4], "big") != magic:
        raise RequestError(
            f"{path} has {len(raw)} bytes and starts with 0x{raw[:4].hex()}. "
            f"Expected: the IDX magic number 0x{magic:08x} and {dimensions} sizes"
        )
    sizes = np.frombuffer(raw[4:start], ">u4").tolist()
    data = np.frombuffer(raw, np.uint8, offset=start)
    wanted = int(np.prod(sizes, dtype=object))
    if len(data) != wanted:
        raise RequestError(
            f"{path} is damaged: its header says {sizes}, that is {wanted} bytes, but {len(data)} follow"
        )
    return data.reshape(sizes).copy()
