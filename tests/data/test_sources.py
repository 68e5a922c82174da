"""Every source on small files in the true format, on the real files if they exist, and on damaged ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torso.config import SyntheticConfig
from torso.data import build, load, sources
from torso.data.clients import Clients
from torso.data.fetch_catalogue import DATASETS
from torso.data.sources.cifar import CIFAR100
from torso.data.sources.class_names import CLASS_NAMES
from torso.data.sources.idx import DEBIAN
from torso.errors import RequestError

from .samples import options, shared

RNG = np.random.default_rng(0)
CPU = torch.device("cpu")


def test_every_source_says_what_it_is() -> None:
    assert sorted(sources) == sorted(
        [*DATASETS, "digits", "synthetic", "folder", "npz", "csv", "jsonl", "given", "parquet", "hf/NAME"]
    )
    assert all((source.__doc__ or "").strip().endswith(".") for source in sources.values())
    with pytest.raises(RequestError, match=r"data.source = 'cifar' is unknown; did you mean 'cifar10'?"):
        load(options(source="cifar"), 0)


def test_well_known_classes_have_their_names() -> None:
    """CIFAR-100 numbers its classes by name; members of a superclass, by the paper, are found at their numbers."""
    assert {name: len(found) for name, found in CLASS_NAMES.items()} == {
        "cifar10": 10,
        "cifar100": 100,
        "fashion-mnist": 10,
    }
    hundred = CLASS_NAMES["cifar100"]
    assert list(hundred) == sorted(set(hundred))
    above = dict(zip(hundred, CIFAR100.superclasses, strict=True))
    for members in (
        "aquarium_fish flatfish ray shark trout",
        "orchid poppy rose sunflower tulip",
        "bicycle bus motorcycle pickup_truck train",
        "baby boy girl man woman",
        "maple_tree oak_tree palm_tree pine_tree willow_tree",
    ):
        assert len({above[member] for member in members.split()}) == 1


def test_objects_may_name_their_classes() -> None:
    given = {"a": (np.zeros((5, 2), np.float32), np.array([0, 1, 0, 1, 0]))}
    assert Clients(given, class_names=["ill", "well", "dead"]).dataset.class_names == ("ill", "well", "dead")
    with pytest.raises(RequestError, match="clients names 1 of 2 classes"):
        Clients(given, classes=2, class_names=["ill"]).dataset  # noqa: B018


# --- made ------------------------------------------------------------------------------------------------------------


def test_digits_are_split_evenly_whatever_the_seed() -> None:
    a, b = (load(options(), seed) for seed in (0, 1))
    assert len(a.train) + len(a.test) == 1797
    assert a.train.images.shape[1:] == (8, 8, 1)
    assert a.train.images.max() == 255
    assert np.bincount(a.test.labels).min() >= 34
    assert np.bincount(a.test.labels).max() <= 36
    assert (a.train.images == b.train.images).all()


def test_synthetic_images_scatter_around_one_per_class() -> None:
    size = SyntheticConfig(classes=3, samples=301, test_samples=30, size=4, channels=2, noise=0.05)
    dataset = load(options(source="synthetic", synthetic=size), 0)
    assert dataset.train.images.shape == (301, 4, 4, 2)
    assert np.bincount(dataset.train.labels).tolist() == [101, 100, 100]
    means = np.stack([dataset.train.images[dataset.train.labels == c].mean(0) for c in range(3)])
    nearest = ((dataset.test.images[:, None] - means) ** 2).sum((2, 3, 4)).argmin(1)
    assert (nearest == dataset.test.labels).all()
    clean = load(options(source="synthetic", synthetic=SyntheticConfig(noise=0)), 0)
    assert (clean.train.images[0] == clean.train.images[10]).all()


def test_what_does_not_fit_into_memory_is_a_request_error() -> None:
    """10¹⁵ bytes of images, more than a process has addresses for; their labels fit."""
    large = SyntheticConfig(classes=1, samples=4 * 10**7, size=5000)
    with pytest.raises(RequestError, match=r"data.source = 'synthetic' does not fit into memory"):
        load(options(source="synthetic", synthetic=large), 0)


# --- IDX -------------------------------------------------------------------------------------------------------------


def write_idx(folder: Path, zipped: bool) -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (20, 5, 4), np.uint8),
        "train-labels-idx1-ubyte": (np.arange(20) % 10).astype(np.uint8),
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (6, 5, 4), np.uint8),
        "t10k-labels-idx1-ubyte": np.arange(6).astype(np.uint8),
    }
    for name, array in arrays.items():
        raw = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(raw) if zipped else raw)
    return arrays


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(tmp_path: Path, zipped: bool) -> None:
    arrays = write_idx(tmp_path, zipped)
    dataset = load(options(source="fashion-mnist", root=str(tmp_path)), 0)
    assert (dataset.train.images[..., 0] == arrays["train-images-idx3-ubyte"]).all()
    assert (dataset.test.labels == arrays["t10k-labels-idx1-ubyte"]).all()
    assert (dataset.mean, dataset.std, dataset.augment) == ((0.1307,), (0.3081,), "none")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (
            "train-images-idx3-ubyte",
            lambda raw: raw[:-1],
            r"header says \[20, 5, 4\], that is 400 bytes, but 399 follow",
        ),
        ("train-images-idx3-ubyte", lambda raw: raw[:9], "Expected: the IDX magic number 0x00000803"),
        ("train-labels-idx1-ubyte", lambda raw: b"", "has 0 bytes and starts with 0x[.]"),
        ("t10k-labels-idx1-ubyte", lambda raw: b"\0\0\x08\x03" + raw[4:], "starts with 0x00000803. .* 0x00000801"),
        ("t10k-labels-idx1-ubyte", lambda raw: raw[:-1] + b"\x0a", "test label 10 .image 5. is not a class"),
        ("t10k-labels-idx1-ubyte", lambda raw: struct.pack(">2I", 0x801, 5) + raw[8:13], "6 images but 5 labels"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, name: str, damage: Any, message: str) -> None:
    write_idx(tmp_path, zipped=False)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(RequestError, match=message):
        load(options(source="fashion-mnist", root=str(tmp_path)), 0)


def test_truncated_gzip_and_missing_files(tmp_path: Path) -> None:
    wanted = options(source="fashion-mnist", root=str(tmp_path))
    with pytest.raises(RequestError, match=r"train-images-idx3-ubyte.gz does not exist. Expected: a folder with"):
        load(wanted, 0)
    write_idx(tmp_path, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RequestError, match=r"train-images-idx3-ubyte.gz cannot be read, it may be damaged \(EOFError"):
        load(wanted, 0)
    with pytest.raises(
        RequestError, match=r"data.root = '/nowhere' does not exist. Expected: a folder with train-images"
    ):
        load(options(source="fashion-mnist", root="/nowhere"), 0)


@pytest.mark.skipif(not Path(DEBIAN).exists(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist() -> None:
    dataset = load(options(source="fashion-mnist"), 0)
    assert np.bincount(dataset.train.labels).tolist() == [6000] * 10
    assert dataset.test.images.shape == (10000, 28, 28, 1)


# --- npz and FEMNIST -------------------------------------------------------------------------------------------------


def arrays(**changes: Any) -> dict[str, Any]:
    made = {"train_images": RNG.integers(0, 256, (8, 5, 4), np.uint8), "train_labels": np.arange(8) % 3}
    made |= {"test_images": RNG.integers(0, 256, (3, 5, 4), np.uint8), "test_labels": np.arange(3)}
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def test_your_own_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    dataset = load(options(source="npz", root=str(tmp_path / "mine.npz")), 0)
    assert (dataset.name, dataset.classes) == ("mine", 3)
    assert dataset.train.images.shape == (8, 5, 4, 1)
    assert dataset.train.writers is None
    assert dataset.mean == pytest.approx([dataset.train.images.mean() / 255])
    assert dataset.remarks == ()


def test_labels_that_count_from_1_are_told(tmp_path: Path) -> None:
    """Class 0 without samples would still be an output of the network, and count in the accuracy by class."""
    from_1 = {name: found + 1 for name, found in arrays().items() if name.endswith("labels")}
    np.savez(tmp_path / "mine.npz", **arrays(**from_1))
    dataset = load(options(source="npz", root=str(tmp_path / "mine.npz")), 0)
    assert dataset.classes == 4
    assert [said.split(":")[0] for said in dataset.remarks] == ["the smallest label is 1, and classes count from 0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"test_labels": None},
            "has no test_labels .it has train_images, train_labels, test_images.. Expected: an .npz",
        ),
        ({"train_images": np.zeros((8, 5, 4))}, r"train: images are float64 \[8, 5, 4\]. Expected: uint8"),
        ({"train_images": np.zeros((8, 20), np.uint8)}, r"train: images are uint8 \[8, 20\]"),
        ({"train_images": np.zeros((8, 0, 4), np.uint8)}, r"train: images are uint8 \[8, 0, 4\]"),
        ({"test_images": np.zeros((3, 6, 4), np.uint8)}, "train images are 5×4 with 1 channel but test images 6×4"),
        ({"test_images": np.zeros((0, 5, 4), np.uint8), "test_labels": np.arange(0)}, "test: there are no images"),
        ({"test_labels": np.array([0, 1, 3])}, r"test label 3 \(image 2\) is not a class. Expected: 0 to 2"),
        ({"train_labels": np.arange(8) - 1}, r"train label -1 \(image 0\) is not a class"),
        ({"train_labels": np.arange(8) / 2}, "train: labels are float64"),
        ({"train_labels": np.arange(7)}, "train: 8 images but 7 labels"),
        ({"train_labels": np.arange(8) * 10**12}, "train label 7000000000000 with only 8 images"),
        ({"train_labels": np.array([None] * 8)}, "has an array of Python objects, which is never loaded: it may hold"),
        (
            {"train_images": np.zeros((8, 3, 5, 6), np.uint8)},
            r"train: images are \[8, 3, 5, 6\], with 3 as their height: .* Expected: \[n, height, width, channels\]",
        ),
        ({"train_writers": np.arange(8)}, "writers for one split only"),
        ({"train_writers": np.arange(5), "test_writers": np.arange(3)}, "train: 8 images but 5 writers"),
    ],
)
def test_arrays_that_will_not_do(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(**change))
    with pytest.raises(RequestError, match=message):
        load(options(source="npz", root=str(tmp_path / "mine.npz")), 0)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"plain text", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(
        RequestError, match=r"mine.npz (cannot be read, it may be damaged|is no archive).* Expected: an .npz file with"
    ):
        load(options(source="npz", root=str(tmp_path / "mine.npz")), 0)


def test_a_truncated_npz_one_array_and_a_folder(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    whole = (tmp_path / "mine.npz").read_bytes()
    (tmp_path / "mine.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "one.npy", np.arange(3))
    for name, message in (("mine.npz", "cannot be read"), ("one.npy", "is one array"), ("", "cannot be read")):
        with pytest.raises(RequestError, match=message):
            load(options(source="npz", root=str(tmp_path / name)), 0)


def test_femnist_in_a_folder(tmp_path: Path) -> None:
    wanted = options(source="femnist", root=str(tmp_path))
    with pytest.raises(RequestError, match=r"holds 0 files femnist\*.npz \(none\)"):
        load(wanted, 0)
    by = {"train_writers": np.arange(8).astype(np.uint16), "test_writers": np.arange(3)}
    np.savez(tmp_path / "femnist_a.npz", **arrays(**by))
    dataset = load(wanted, 0)
    assert dataset.classes == 62
    assert dataset.train.writers is not None
    assert dataset.train.writers.tolist() == list(range(8))
    np.savez(tmp_path / "femnist_b.npz", **arrays())
    with pytest.raises(RequestError, match=r"holds 2 files .*femnist_a.npz, femnist_b.npz"):
        load(wanted, 0)
    with pytest.raises(RequestError, match=r"has no train_writers"):
        load(options(source="femnist", root=str(tmp_path / "femnist_b.npz")), 0)


def test_a_part_is_held_out_of_an_npz_without_one(tmp_path: Path) -> None:
    """Row numbers as pixels: no image is in both parts, and class and writer stay with their image."""
    images = np.repeat(np.arange(40, dtype=np.uint8), 4).reshape(40, 2, 2)
    told = {"train_images": images, "train_labels": np.arange(40) % 2, "train_writers": np.arange(40) // 20}
    np.savez(tmp_path / "mine.npz", **told)
    dataset = load(options(source="npz", root=str(tmp_path / "mine.npz"), npz={"test_share": 0.25}), 0)
    rows = [split.images[:, 0, 0, 0] for split in (dataset.train, dataset.test)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(40))
    assert len(rows[1]) == 10
    for row, split in zip(rows, (dataset.train, dataset.test), strict=True):
        assert np.array_equal(split.labels, row % 2)
        assert np.array_equal(split.writers, row // 20)
    assert set(np.bincount(dataset.test.writers * 2 + dataset.test.labels)) == {2, 3}  # five of each client


def test_writers_are_named_and_those_drawn_are_recorded(tmp_path: Path) -> None:
    """Writers that are words keep their names; whole numbers, with gaps, name them by number. A writer that has only
    test samples is no client."""
    by = {"train_writers": np.array([9, 40, 9, 40, 9, 40, 7, 7]), "test_writers": np.array([9, 40, 3])}
    words = {key: np.array([{3: "no", 7: "c 10", 9: "c 9", 40: "甲"}[n] for n in found]) for key, found in by.items()}
    for name, told in (("numbers", by), ("words", words)):
        np.savez(tmp_path / f"{name}.npz", **arrays(**told))
    dealt = {
        name: build(options(source="npz", root=str(tmp_path / f"{name}.npz"), partition="by-client", clients=n), 0, CPU)
        for name, n in (("numbers", 2), ("words", 0))
    }
    assert dealt["words"].names == ("c 9", "c 10", "甲")
    assert dealt["words"].train.sizes.tolist() == [3, 2, 3]
    drawn = {"writer-7": 2, "writer-9": 3, "writer-40": 3}
    assert len(dealt["numbers"].names) == 2
    assert [drawn[name] for name in dealt["numbers"].names] == dealt["numbers"].train.sizes.tolist()
    for wrong in ({"test_writers": words["test_writers"]}, {"train_writers": np.arange(8) / 2}):
        np.savez(tmp_path / "wrong.npz", **arrays(**{**by, **wrong}))
        with pytest.raises(RequestError, match=r"writers are .* Expected: words or integers, alike in both splits"):
            load(options(source="npz", root=str(tmp_path / "wrong.npz")), 0)


def test_the_real_femnist() -> None:
    dataset = load(options(source="femnist", root=str(shared("femnist_105_writers.npz").parent)), 0)
    assert (len(dataset.train), len(dataset.test)) == (14708, 1663)
    assert len(np.unique(dataset.train.writers)) == 105
    # ink is dark on white paper: with MNIST's own mean all samples would have an offset of 2.7, and nothing learns
    assert abs(dataset.train.images.mean() / 255 - dataset.mean[0]) / dataset.std[0] < 0.5


def test_digits_are_those_that_scikit_learn_loads() -> None:
    """The digits are read from scikit-learn's file, because its import takes a second."""
    from sklearn.datasets import load_digits

    from torso.data.sources.made import _digits_of_sklearn

    raw, (pixels, labels) = load_digits(), _digits_of_sklearn()
    assert np.array_equal(raw.data, pixels)
    assert np.array_equal(raw.target, labels)
