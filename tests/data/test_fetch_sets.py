"""Small copies of every data set in the official format: downloaded, converted, and read by their sources."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import resource
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from torso.data import Dataset, load
from torso.data.fetch import DownloadListener, get_data
from torso.data.fetch_catalogue import DATASETS
from torso.data.fetch_http import RetryLimits
from torso.data.fetch_sets import DataSet, RemoteFile
from torso.errors import RequestError

from .file_server import Files, serving
from .samples import options
from .test_cifar import cifar_blobs, write_cifar
from .test_sources import write_idx

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def server() -> Iterator[Files]:
    with serving() as files:
        yield files


Make = Callable[[str, dict[str, bytes]], Path]


@pytest.fixture
def made(server: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Download a data set with these official files; returns its folder, in which runs find it."""
    home = tmp_path / "home"
    monkeypatch.setenv("TORSO_DATA", str(home))
    monkeypatch.delenv("TORSO_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "*")

    def call(name: str, contents: dict[str, bytes]) -> Path:
        server.content = {f"/{file}": content for file, content in contents.items()}
        return get_data(small(name, contents, server.url), home, "", DownloadListener(), RetryLimits(pause=0)).folder

    return call


def small(name: str, contents: dict[str, bytes], url: str) -> DataSet:
    known = DATASETS[name]
    assert [file.name for file in known.files] == list(contents)
    files = [
        RemoteFile(file, len(content), (f"{url}/{file}",), hashlib.sha256(content).hexdigest())
        for file, content in contents.items()
    ]
    return replace(known, files=tuple(files), room=0, scratch=0)


def read(name: str) -> Dataset:
    """With data.root empty."""
    return load(options(source=name), 0)


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def picture(side: int, level: int, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(out, kind)
    return out.getvalue()


# --- as they come ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(made: Make, tmp_path: Path, name: str) -> None:
    archive = write_cifar(tmp_path, name, cifar_blobs(name), archive=True)
    folder = made(name, {archive.name: archive.read_bytes()})
    assert [path.name for path in folder.iterdir()] == [archive.name]
    assert len(read(name).test) == 4


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_idx_files(made: Make, tmp_path: Path, name: str) -> None:
    arrays = write_idx(tmp_path, zipped=True)
    made(name, {f"{file}.gz": (tmp_path / f"{file}.gz").read_bytes() for file in arrays})
    dataset = read(name)
    assert dataset.name == name
    assert (dataset.train.samples[..., 0] == arrays["train-images-idx3-ubyte"]).all()


# --- made into .npz --------------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes())


def emnist(split: str, labels: list[int], mapping: str, images: np.ndarray) -> dict[str, bytes]:
    members = {f"gzip/emnist-{split}-mapping.txt": mapping.encode()}
    for part in ("train", "test"):
        members[f"gzip/emnist-{split}-{part}-images-idx3-ubyte.gz"] = idx(images)
        members[f"gzip/emnist-{split}-{part}-labels-idx1-ubyte.gz"] = idx(np.array(labels, np.uint8))
    return members


def test_emnist(made: Make, server: Files) -> None:
    """Letters are numbered from 1, and rows and columns are exchanged; both splits come from one download."""
    images = RNG.integers(0, 256, (3, 28, 28), np.uint8)
    members = emnist("letters", [1, 3, 2], "1 65 97\n2 66 98\n3 67 99\n", images)
    members |= emnist("balanced", [0, 1, 0], "0 48\n1 97\n", images)
    packed = {"gzip.zip": zipped(members)}
    folder = made("emnist-letters", packed)
    letters = read("emnist-letters")
    assert letters.class_names == ("A", "B", "C")
    assert letters.train.labels.tolist() == [0, 2, 1]
    assert (letters.train.samples[..., 0] == images.transpose(0, 2, 1)).all()
    server.asked.clear()
    made("emnist-balanced", packed)
    assert read("emnist-balanced").class_names == ("0", "a")
    assert server.asked == []
    assert sorted(path.name for path in folder.iterdir()) == ["emnist-balanced.npz", "emnist-letters.npz", "gzip.zip"]


def test_svhn(made: Make, tmp_path: Path) -> None:
    """The digit 0 has the label 10, and the images come last."""
    images = RNG.integers(0, 256, (4, 32, 32, 3), np.uint8)
    contents = {}
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": images.transpose(1, 2, 3, 0), "y": np.array([[1], [10], [9], [2]], np.uint8)})
        contents[name] = (tmp_path / name).read_bytes()
    made("svhn", contents)
    dataset = read("svhn")
    assert (dataset.train.samples == images).all()
    assert dataset.test.labels.tolist() == [1, 0, 9, 2]
    assert dataset.classes == 10


def tiny() -> dict[str, bytes]:
    top = "tiny-imagenet-200"
    members = {
        f"{top}/wnids.txt": b"n02\nn01\n",
        f"{top}/words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tentity\n",
        f"{top}/val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t62\t62\nval_1.JPEG\tn01\t0\t0\t62\t62\n",
        f"{top}/val/images/val_0.JPEG": picture(64, 200, "JPEG"),
        f"{top}/val/images/val_1.JPEG": picture(64, 100, "JPEG"),
        f"{top}/test/images/test_0.JPEG": picture(64, 7, "JPEG"),
        f"{top}/train/n01/n01_boxes.txt": b"",
    }
    for number, wnid in enumerate(("n01", "n02")):
        for i in (10, 9):
            members[f"{top}/train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(64, 100 * number + i, "JPEG")
    return members


def test_tiny_imagenet(made: Make) -> None:
    """Classes in the order of their ids, named by their first word; tested on validation images."""
    made("tiny-imagenet", {"tiny-imagenet-200.zip": zipped(tiny())})
    dataset = read("tiny-imagenet")
    assert dataset.class_names == ("goldfish", "crane")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(dataset.train.samples.mean((1, 2, 3)), [9, 10, 109, 110], atol=1)
    np.testing.assert_allclose(dataset.test.samples.mean((1, 2, 3)), [100, 200], atol=1)
    assert dataset.test.labels.tolist() == [0, 1]


def cinic(members: dict[str, bytes], links: dict[str, str] | None = None) -> dict[str, bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return {"CINIC-10.tar.gz": out.getvalue()}


CINIC = {
    "./train/truck/b.png": picture(32, 9, "PNG"),
    "./train/bird/z.png": picture(32, 5, "PNG"),
    "./train/bird/a.png": picture(32, 4, "PNG"),
    "./valid/bird/a.png": picture(32, 77, "PNG"),
    "./test/cat/a.png": picture(32, 3, "PNG"),
}


def test_cinic(made: Make) -> None:
    made("cinic10", cinic(CINIC))
    dataset = read("cinic10")
    assert dataset.train.samples[:, 0, 0, 0].tolist() == [4, 5, 9]
    assert dataset.train.labels.tolist() == [2, 2, 9]
    assert dataset.class_names[2] == "bird"
    assert dataset.augment == "crop-flip"


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(pixels: np.ndarray, label: int) -> bytes:
    """A tf.train.Example, with both lists packed."""
    features = {
        "label": field(3, field(1, varint(label))),
        "pixels": field(2, field(1, pixels.astype("<f4").tobytes())),
    }
    entries = (field(1, field(1, name.encode()) + field(2, feature)) for name, feature in features.items())
    return field(1, b"".join(entries))


def femnist(tmp_path: Path, rows: list[tuple[str, str, bytes]]) -> dict[str, bytes]:
    base = sqlite3.connect(tmp_path / "all.sqlite")
    base.execute(
        "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
        "serialized_example_proto BLOB NOT NULL)"
    )
    base.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    base.commit()
    base.close()
    return {"emnist_all.sqlite.lzma": lzma.compress((tmp_path / "all.sqlite").read_bytes())}


def test_femnist(made: Make, tmp_path: Path) -> None:
    """Writers are numbered by their names, the digits-only splits are left out, paper stays white."""
    pixels = [np.full((28, 28), level / 255) for level in (255, 0, 51)]
    rows = [
        ("all_train", "f02", example(pixels[0], 61)),
        ("all_train", "f01", example(pixels[1], 3)),
        ("all_train", "f02", example(pixels[2], 4)),
        ("all_test", "f02", example(pixels[2], 61)),
        ("digits_only_train", "f01", example(pixels[1], 3)),
    ]
    folder = made("femnist", femnist(tmp_path, rows))
    dataset = read("femnist")
    assert dataset.train.samples[:, 0, 0, 0].tolist() == [0, 255, 51]
    assert dataset.train.labels.tolist() == [3, 61, 4]
    assert dataset.train.writers is not None
    assert dataset.train.writers.tolist() == [0, 1, 1]
    assert sorted(path.name for path in folder.iterdir()) == ["emnist_all.sqlite.lzma", "femnist.npz"]


# --- damaged and hostile ---------------------------------------------------------------------------------------------


def test_members_with_paths_and_links_write_nothing(made: Make, tmp_path: Path) -> None:
    """Members are read by their whole names and never written, so these are passed over."""
    hostile = {
        "../../evil.png": CINIC["./test/cat/a.png"],
        str(tmp_path / "evil.png"): b"x",
        "./train/../evil.png": b"x",
    }
    folder = made("cinic10", cinic({**CINIC, **hostile}, {"./train/cat/link.png": "/etc/passwd"}))
    assert len(read("cinic10").train) == 3
    assert not list(tmp_path.rglob("evil*"))
    assert sorted(path.name for path in folder.iterdir()) == ["CINIC-10.tar.gz", "cinic10.npz"]


Case = tuple[str, Callable[[Path], dict[str, bytes]], str]
_BIG = bytes((1 << 20) + 1)
_TRAIN = "tiny-imagenet-200/train/n01/images/n01_9.JPEG"
_NOTES = "tiny-imagenet-200/val/val_annotations.txt"


def tiny_with(**changes: bytes) -> Callable[[Path], dict[str, bytes]]:
    named = {"train": _TRAIN, "notes": _NOTES}
    return lambda _: {"tiny-imagenet-200.zip": zipped({**tiny(), **{named[k]: v for k, v in changes.items()}})}


def femnist_of(*blobs: bytes) -> Callable[[Path], dict[str, bytes]]:
    rows = [(split, "f", blob) for blob in blobs for split in ("all_train", "all_test")]
    return lambda tmp_path: femnist(tmp_path, rows)


BROKEN: dict[str, Case] = {  # files with the right checksum but wrong content, and the messages
    "no archive": ("tiny-imagenet", lambda _: {"tiny-imagenet-200.zip": b"no zip" * 10}, "cannot be read, it may be"),
    "no annotations": (
        "tiny-imagenet",
        lambda _: {"tiny-imagenet-200.zip": zipped({k: v for k, v in tiny().items() if k != _NOTES})},
        f"has no {_NOTES}",
    ),
    "a bomb": ("tiny-imagenet", tiny_with(train=_BIG), "has 1,048,577 bytes. Expected: at most 1,048,576"),
    "a large picture": ("tiny-imagenet", tiny_with(train=picture(65, 1, "JPEG")), "is 65×65. Expected: 64×64"),
    "a path to elsewhere": ("tiny-imagenet", tiny_with(notes=b"val_0/../../etc/x.JPEG\tn01"), "cannot be read"),
    "a bomb in a tar": ("cinic10", lambda _: cinic({**CINIC, "./test/cat/b.png": _BIG}), "unpacks to more than 1,048,"),
    "no test images": (
        "cinic10",
        lambda _: cinic({k: v for k, v in CINIC.items() if "test" not in k}),
        r"has no test/CLASS/\*.png",
    ),
    "labels out of the mapping": (
        "emnist-digits",
        lambda _: {"gzip.zip": zipped(emnist("digits", [0, 5], "0 48\n", np.zeros((2, 28, 28), np.uint8)))},
        "has labels that its mapping does not contain",
    ),
    "half an example": ("femnist", femnist_of(example(np.ones(784), 1)[:-9]), "a protobuf field ends behind"),
    "too few pixels": ("femnist", femnist_of(example(np.ones(9), 1)), "an example has 9 pixels and 1 labels"),
    "no rows": ("femnist", femnist_of(), "has 0 rows of all_train"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_are_not_what_they_should_be(made: Make, tmp_path: Path, name: str) -> None:
    data, contents_in, message = BROKEN[name]
    contents = contents_in(tmp_path)
    with pytest.raises(RequestError, match=message):
        made(data, contents)
    left = sorted(path.name for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert left == list(contents)  # the download is kept, half a .npz is not


def test_a_disk_without_room_for_what_is_made(made: Make, tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (40, 28, 28), np.uint8)
    contents = {"gzip.zip": zipped(emnist("mnist", [0] * 40, "0 48\n", images))}
    folder = made("emnist-mnist", contents)
    (folder / "emnist-mnist.npz").unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(RequestError, match=r"emnist-mnist.npz cannot be written \(File too large\)"):
            made("emnist-mnist", contents)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in folder.iterdir()] == ["gzip.zip"]


# --- what runs say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_run_without_the_files_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TORSO_DATA", str(tmp_path))
    for root in (str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(RequestError, match=f"; or download it: torso data get {name}"):
            load(options(source=name, root=root), 0)
    if name != "fashion-mnist":  # Debian may have it
        with pytest.raises(RequestError, match=f"data.root is empty.*; or download it: torso data get {name}"):
            read(name)
