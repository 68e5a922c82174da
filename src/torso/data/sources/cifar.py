"""The sources `cifar10` and `cifar100`: from the distributed Python archive, its folder, or JPEGs packed in an .npz.

The distributed files are pickles. They are read by an unpickler that accepts nothing but NumPy arrays, and archive
members are read in memory, so a hostile file can neither run code nor write to disk.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.decoded import decoded
from torso.data.fetch_catalogue import hint
from torso.data.images import Dataset, Images, as_images
from torso.data.sources.arrays import read_npz
from torso.data.sources.base import read_bytes, reading, root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

_SIDE = 32


@dataclass(frozen=True)
class _Layout:
    """The file names, keys and constants of one of the two data sets (spec 10.6)."""

    name: str
    archive: str  # the distributed file
    folder: str  # the folder in it
    packed: str  # the .npz with JPEGs
    train: tuple[str, ...]  # files in the folder
    test: str
    labels: str  # key of the labels in these files
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    superclasses: tuple[int, ...] = ()  # of each class

    @property
    def expected(self) -> str:
        return f"{self.archive}, the folder {self.folder}, {self.packed}, or a folder with one of them{hint(self.name)}"


CIFAR10 = _Layout(
    name="cifar10",
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    packed="cifar10_jpeg.npz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    labels="labels",
    classes=10,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
CIFAR100 = _Layout(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    packed="cifar100_jpeg.npz",
    train=("train",),
    test="test",
    labels="fine_labels",
    classes=100,
    mean=(0.507, 0.487, 0.441),
    std=(0.267, 0.256, 0.276),
    superclasses=(  # classes are in the order of their names: apple 4 (fruit and vegetables), aquarium_fish 1 (fish), …
        *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
        *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
        *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
        *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
        *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
    ),
)


@sources.register("cifar10")
def cifar10(options: DataConfig, seed: int) -> Dataset:
    """CIFAR-10: 50,000 / 10,000 colour images of 32×32 in 10 classes, from the Python archive or packed JPEGs."""
    return _load(options, CIFAR10)


@sources.register("cifar100")
def cifar100(options: DataConfig, seed: int) -> Dataset:
    """CIFAR-100: 50,000 / 10,000 colour images of 32×32 in 100 classes, from the Python archive or packed JPEGs."""
    return _load(options, CIFAR100)


def _load(options: DataConfig, layout: _Layout) -> Dataset:
    path = _find(root_of(options, layout.expected), layout)
    read = read_packed if path.suffix == ".npz" else read_distributed
    train, test = read(path, layout)
    return Dataset(
        layout.name,
        train,
        test,
        layout.classes,
        layout.mean,
        layout.std,
        augment="crop-flip",
        superclasses=layout.superclasses,
    )


def _find(root: Path, layout: _Layout) -> Path:
    """The archive, the folder of batches or the packed file at `data.root` or in it."""
    if root.is_file() or (root / layout.test).is_file():
        return root
    for name in (layout.folder, layout.archive, layout.packed):
        if (root / name).exists():
            return root / name
    raise RequestError(f"data.root = {str(root)!r} does not hold {layout.name}. Expected: {layout.expected}")


def read_distributed(path: Path, layout: _Layout) -> tuple[Images, Images]:
    """Both splits from the .tar.gz or its extracted folder."""
    wanted = {*layout.train, layout.test}
    if path.is_dir():
        with reading(path, layout.expected):
            blobs = {name: (path / name).read_bytes() for name in wanted if (path / name).is_file()}
    else:
        blobs = _untar(path, wanted, layout.expected)
    missing = sorted(wanted - set(blobs))
    if missing:
        raise RequestError(f"{path} has no {', '.join(missing)}. Expected: {layout.expected}")
    batches = {name: _batch(f"{path} {name}", blob, layout) for name, blob in blobs.items()}
    joined = (np.concatenate(parts) for parts in zip(*(batches[name] for name in layout.train), strict=True))
    return as_images(f"{path} train", *joined), as_images(f"{path} test", *batches[layout.test])


def _untar(path: Path, wanted: set[str], expected: str) -> dict[str, bytes]:
    """The content of the wanted members of an archive, by their names."""
    blobs: dict[str, bytes] = {}
    with reading(path, expected), tarfile.open(fileobj=io.BytesIO(read_bytes(path)), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and PurePosixPath(member.name).name in wanted:
                blobs[PurePosixPath(member.name).name] = content.read()
    return blobs


def _batch(where: str, blob: bytes, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 32, 32, 3] and labels [n] of one pickled batch. Its rows are flat [channel, height, width]."""
    expected = f"a batch with data (uint8, n × 3072) and {layout.labels}"
    with reading(where, expected):
        tree = _ArraysOnly(io.BytesIO(blob), encoding="latin1").load()
        keys = {k.decode() if isinstance(k, bytes) else k: v for k, v in tree.items()}
        data, labels = np.asarray(keys["data"]), np.asarray(keys[layout.labels])
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * _SIDE**2:
            raise RequestError(f"{where}: data are {data.dtype} {list(data.shape)}. Expected: {expected}")
        return data.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1), labels


def _latin1(text: str, encoding: str) -> bytes:
    """Replaces `_codecs.encode`, by which Python 3 writes bytes into old pickles; refuses all codecs but latin1."""
    if encoding != "latin1":
        raise RequestError(f"a pickle asks for the codec {encoding!r}. Accepted: latin1")
    return text.encode("latin1")


_RECONSTRUCT: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that finds only what a NumPy array consists of. It refuses everything else before importing it."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise RequestError(
                f"a pickle asks for {module}.{name}, refused. Accepted: NumPy arrays and plain values"
            ) from None


def read_packed(path: Path, layout: _Layout) -> tuple[Images, Images]:
    """Both splits from {split}_jpeg (all files concatenated), {split}_offsets [n + 1] and {split}_labels [n]."""
    arrays = read_npz(path, layout.expected, parts=("jpeg", "offsets", "labels"))
    train, test = (
        as_images(
            f"{path} {split}",
            _decode(f"{path} {split}", arrays[f"{split}_jpeg"], arrays[f"{split}_offsets"]),
            arrays[f"{split}_labels"],
        )
        for split in ("train", "test")
    )
    return train, test


def _decode(where: str, jpeg: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The images [n, 32, 32, 3], decoded or read from the cache of an earlier process."""
    expected = "JPEG bytes one after another, with n + 1 offsets from 0 to their end"
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise RequestError(f"{where}: offsets are {offsets.dtype} {list(offsets.shape)}. Expected: {expected}")
    ends = offsets.astype(np.int64)
    if ends[0] != 0 or ends[-1] != len(jpeg) or (np.diff(ends) <= 0).any() or jpeg.dtype != np.uint8:
        raise RequestError(
            f"{where}: offsets {ends[0]} to {ends[-1]} do not fit {len(jpeg)} bytes. Expected: {expected}"
        )
    shape = (len(ends) - 1, _SIDE, _SIDE, 3)
    return decoded((jpeg, ends), shape, lambda: _decoded_now(where, jpeg, ends, shape))


def _decoded_now(where: str, jpeg: np.ndarray, ends: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    from PIL import Image

    out = np.empty(shape, np.uint8)
    content = jpeg.tobytes()
    for i in range(len(out)):  # in one thread: images this small hold Python's lock most of the time
        with (
            reading(f"{where} image {i}", "a JPEG"),
            Image.open(io.BytesIO(content[ends[i] : ends[i + 1]]), formats=["JPEG"]) as image,
        ):
            if image.size != (_SIDE, _SIDE):
                raise RequestError(f"{where} image {i} is {image.width}×{image.height}. Expected: {_SIDE}×{_SIDE}")
            out[i] = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    return out
