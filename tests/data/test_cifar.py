"""CIFAR-10 and CIFAR-100: archives, folders, packed JPEGs, the real file if it exists, damaged and hostile files."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from torso.data import load
from torso.errors import RequestError

from .samples import options, shared

RNG = np.random.default_rng(0)


def cifar_blobs(name: str) -> dict[str, bytes]:
    """The files of the Python archive with 4 images in each batch, pickled by protocol 2 as the real ones."""
    hundred = name == "cifar100"
    names = ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    blobs = {"batches.meta": pickle.dumps({"label_names": ["a"]}, 2)}
    for number, file in enumerate(names):
        data = np.random.default_rng(number).integers(0, 256, (4, 3072), np.uint8)
        tree: dict[Any, Any] = {"data": data, "filenames": ["x.png"] * 4, "batch_label": b"of five"}
        tree["fine_labels" if hundred else "labels"] = [number, 1, 2, 3]
        tree["coarse_labels"] = [0] * 4
        blobs[file] = pickle.dumps(tree, 2)
    return blobs


FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def write_cifar(root: Path, name: str, blobs: dict[str, bytes], archive: bool) -> Path:
    if not archive:
        (root / FOLDERS[name]).mkdir()
        for file, blob in blobs.items():
            (root / FOLDERS[name] / file).write_bytes(blob)
        return root / FOLDERS[name]
    with tarfile.open(root / ARCHIVES[name], "w:gz") as tar:
        for file, blob in blobs.items():
            member = tarfile.TarInfo(f"{FOLDERS[name]}/{file}")
            member.size = len(blob)
            tar.addfile(member, io.BytesIO(blob))
    return root / ARCHIVES[name]


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_python_archive_and_its_folder(tmp_path: Path, name: str, archive: bool, parent: bool) -> None:
    path = write_cifar(tmp_path, name, cifar_blobs(name), archive)
    dataset = load(options(source=name, root=str(tmp_path if parent else path)), 0)
    last = 1 if name == "cifar100" else 5
    assert dataset.train.images.shape == (4 * last, 32, 32, 3)
    assert dataset.test.labels.tolist() == [last, 1, 2, 3]
    row = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)[1]  # red, green, blue planes, row by row
    assert dataset.train.images[1, 2, 7].tolist() == [row[2 * 32 + 7], row[1024 + 2 * 32 + 7], row[2048 + 2 * 32 + 7]]
    assert dataset.augment == "crop-flip"
    assert dataset.mean[0] == (0.507 if name == "cifar100" else 0.485)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]  # nothing was extracted


def test_bytes_keys_and_old_numpy_names_are_read(tmp_path: Path) -> None:
    """The archive as distributed comes from Python 2: byte strings, and numpy.core instead of numpy._core."""
    blobs = cifar_blobs("cifar10")
    tree = pickle.loads(blobs["test_batch"])
    blobs["test_batch"] = pickle.dumps({k.encode(): v for k, v in tree.items()}, 2)
    blobs["data_batch_1"] = blobs["data_batch_1"].replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    path = write_cifar(tmp_path, "cifar10", blobs, archive=False)
    assert len(load(options(source="cifar10", root=str(path)), 0).train) == 20


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("archive", [False, True])
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path: Path, archive: bool) -> None:
    blobs = cifar_blobs("cifar10")
    blobs["data_batch_3"] = pickle.dumps({"data": Hostile(tmp_path / "marker"), "labels": [0]}, 2)
    path = write_cifar(tmp_path, "cifar10", blobs, archive)
    with pytest.raises(RequestError, match=r"asks for \w+.mkdir, refused. Accepted: NumPy arrays"):
        load(options(source="cifar10", root=str(path)), 0)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"", "data_batch_2 cannot be read, it may be damaged .EOFError"),
        (cifar_blobs("cifar10")["data_batch_2"][:2000], "data_batch_2 cannot be read, it may be damaged"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, 2), "data_batch_2 cannot be read.*KeyError: 'labels'"),
        (
            pickle.dumps({"data": np.zeros((2, 9)), "labels": [1, 2]}, 2),
            r"data are float64 \[2, 9\]. Expected: a batch",
        ),
        (pickle.dumps([1, 2], 2), "data_batch_2 cannot be read"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1.5]}, 2), "labels are float64"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, 2), "train label 10 .* 0 to 9"),
    ],
)
def test_damaged_batches(tmp_path: Path, batch: bytes, message: str) -> None:
    path = write_cifar(tmp_path, "cifar10", {**cifar_blobs("cifar10"), "data_batch_2": batch}, archive=False)
    with pytest.raises(RequestError, match=message):
        load(options(source="cifar10", root=str(path)), 0)


def test_truncated_and_incomplete_archives(tmp_path: Path) -> None:
    blobs = cifar_blobs("cifar10")
    path = write_cifar(tmp_path, "cifar10", blobs, archive=True)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(RequestError, match=r"cifar-10-python.tar.gz (cannot be read|has no)"):
            load(options(source="cifar10", root=str(path)), 0)
    del blobs["data_batch_4"]
    write_cifar(tmp_path, "cifar10", blobs, archive=True)
    with pytest.raises(RequestError, match=r"has no data_batch_4. Expected: cifar-10-python.tar.gz, the folder"):
        load(options(source="cifar10", root=str(path)), 0)


def test_a_root_that_holds_no_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSO_DATA", str(tmp_path))  # nothing was downloaded
    with pytest.raises(RequestError, match=r"data.root is empty: data.source = 'cifar10' needs it. Expected: cifar-10"):
        load(options(source="cifar10"), 0)
    with pytest.raises(RequestError, match=r"does not hold cifar100. Expected: cifar-100-python.tar.gz"):
        load(options(source="cifar100", root=str(tmp_path)), 0)


def packed(count: int = 4, size: int = 32) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        files = []
        for i in range(count):
            buffer = io.BytesIO()
            Image.fromarray(np.full((size, size, 3), 50 * i, np.uint8)).save(buffer, "JPEG")
            files.append(buffer.getvalue())
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, files)]).astype(np.uint32)
        arrays[f"{split}_labels"] = np.arange(count).astype(np.uint8)
    return arrays


def test_packed_jpegs(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10_jpeg.npz", **packed())
    for root in (tmp_path, tmp_path / "cifar10_jpeg.npz"):
        dataset = load(options(source="cifar10", root=str(root)), 0)
        assert np.abs(dataset.train.images.mean((1, 2, 3)) - [0, 50, 100, 150]).max() <= 1
        assert dataset.train.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_offsets": np.array([0, 5, 4])}, "train: offsets 0 to 4 do not fit"),
        ({"train_offsets": np.array([0.0])}, "train: offsets are float64"),
        ({"test_jpeg": np.zeros_like(packed()["test_jpeg"])}, "test image 0 cannot be read.*Expected: a JPEG"),
        ({"train_labels": np.arange(3)}, "train: 4 images but 3 labels"),
        (packed(size=16), "train image 0 is 16×16. Expected: 32×32"),
    ],
)
def test_damaged_packed_jpegs(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "cifar10_jpeg.npz", **{**packed(), **change})
    with pytest.raises(RequestError, match=message):
        load(options(source="cifar10", root=str(tmp_path)), 0)


def test_the_real_packed_cifar10() -> None:
    dataset = load(options(source="cifar10", root=str(shared("cifar10_jpeg.npz"))), 0)
    assert np.bincount(dataset.train.labels).tolist() == [5000] * 10
    assert np.bincount(dataset.test.labels).tolist() == [1000] * 10
    np.testing.assert_allclose(dataset.train.images.mean((0, 1, 2)) / 255, (0.4914, 0.4822, 0.4465), atol=0.005)
