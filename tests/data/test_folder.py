"""Folders of image files in every layout, and the messages for wrong ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torso.config import FolderConfig
from torso.data import Dataset, build, load
from torso.data.image_files import digest_of, pixels_of
from torso.errors import RequestError

from .samples import options

RNG = np.random.default_rng(0)
Files = dict[str, tuple[str, tuple[int, int]]]


def write_images(root: Path, files: Files) -> None:
    for name, (mode, size) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, (200, 100, 50) if mode == "RGB" else 100).save(root / name)


def grey(*names: str) -> Files:
    return dict.fromkeys(names, ("L", (6, 5)))


def read(root: Path, size: int = 0, **how: Any) -> Dataset:
    return load(options(source="folder", root=str(root), size=size, folder=FolderConfig(**how)), 0)


GREY = grey(*(f"{split}/{c}/{i}.png" for split in ("train", "test") for c in ("cat", "ant") for i in range(2)))


def test_a_folder_of_images(tmp_path: Path) -> None:
    write_images(tmp_path, GREY)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    dataset = read(tmp_path)
    assert dataset.train.samples.shape == (4, 5, 6, 1)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.class_names == ("ant", "cat")
    assert dataset.remarks == ("data.source = 'folder': files passed over because they are not images: 1",)
    write_images(tmp_path, {"test/ant/colour.jpg": ("RGB", (6, 5))})
    assert read(tmp_path).train.samples.shape == (4, 5, 6, 3)


@pytest.mark.parametrize(
    ("pattern", "clients", "has_test"),
    [
        ("{label}/{i}.png", False, False),
        ("{split}/{label}/{i}.png", False, True),
        ("{client}/{label}/{i}.png", True, False),
        ("{split}/{client}/{label}/{i}.png", True, True),
        ("{client}/{split}/{label}/{i}.png", True, True),
    ],
)
def test_every_layout(tmp_path: Path, pattern: str, clients: bool, has_test: bool) -> None:
    """Five images of every client, class and split: a fifth is held out if there is no test part."""
    names = {
        pattern.format(client=client, label=label, split=split, i=f"{client}-{split}-{i}")
        for client in ("Klinik 3", "北京")
        for label in ("ill", "so well")
        for split in ("train", "test")
        for i in range(5)
    }
    write_images(tmp_path, grey(*names))
    dataset = read(tmp_path)
    assert dataset.class_names == ("ill", "so well")
    assert dataset.names == (("Klinik 3", "北京") if clients else ())
    assert (len(dataset.train), len(dataset.test)) == ((20, 20) if has_test else (32, 8))
    assert np.bincount(dataset.test.labels).tolist() == ([10, 10] if has_test else [4, 4])
    if not clients:
        assert dataset.train.writers is None
        return
    federation = build(
        options(source="folder", root=str(tmp_path), partition="by-client", clients=0), 0, torch.device("cpu")
    )
    assert federation.names == ("Klinik 3", "北京")
    assert federation.class_names == ("ill", "so well")
    assert federation.class_counts.tolist() == ([[5, 5]] * 2 if has_test else [[8, 8]] * 2)


def test_pixels_go_to_their_client_and_class(tmp_path: Path) -> None:
    for value, name in enumerate(("b/y/1.png", "a/y/1.png", "a/x/1.png", "a/x/2.png")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), 10 * value).save(tmp_path / name)
    dataset = read(tmp_path)
    assert dataset.train.writers is not None
    assert dataset.test.writers is not None
    found = {
        (int(split.samples[n, 0, 0, 0]), dataset.names[split.writers[n]], dataset.class_names[split.labels[n]])
        for split in (dataset.train, dataset.test)
        for n in range(len(split))
        if split.writers is not None
    }
    assert found == {(0, "b", "y"), (10, "a", "y"), (20, "a", "x"), (30, "a", "x")}
    assert len(dataset.test) == 1
    assert dataset.class_names[dataset.test.labels[0]] == "x"  # the only class that can spare one


def test_the_layout_can_be_said(tmp_path: Path) -> None:
    """torchvision's ImageFolder walks below a class: what auto takes for clients are classes there."""
    write_images(tmp_path, grey(*(f"{label}/{day}/{i}.png" for label, day in ("cm", "dt") for i in range(3))))
    assert read(tmp_path).names == ("c", "d")
    assert "set data.folder.layout = class" in read(tmp_path).remarks[0]
    classes = read(tmp_path, layout="class")
    assert (classes.class_names, classes.names, classes.remarks) == (("c", "d"), (), ())
    write_images(tmp_path, grey("c/9.png"))
    with pytest.raises(RequestError, match=r"c/9.png and .* fit no layout.*data.folder.layout = class or client/class"):
        read(tmp_path)
    with pytest.raises(RequestError, match=r"layout = 'client/class', and .*c/9.png has 1 folders above it"):
        read(tmp_path, layout="client/class")
    assert read(tmp_path, layout="class").class_names == ("c", "d")


def test_a_class_may_be_called_train_and_val_stands_for_test(tmp_path: Path) -> None:
    write_images(tmp_path / "a", grey(*(f"{vehicle}/{i}.png" for vehicle in ("bus", "train") for i in range(5))))
    assert read(tmp_path / "a").class_names == ("bus", "train")
    write_images(tmp_path / "b", grey("train/c/1.png", "val/c/1.png", "validation/c/1.png"))
    dataset = read(tmp_path / "b")
    assert (len(dataset.train), len(dataset.test)) == (1, 1)
    assert dataset.remarks == (
        "data.source = 'folder': not used, since there is a test part already: validation (images: 1)",
    )


def test_exif_orientation_is_heeded(tmp_path: Path) -> None:
    """Orientation 6: a viewer turns the stored image by 90° clockwise, so its left column becomes the top row."""
    stored = np.zeros((2, 3), np.uint8)
    stored[:, 0] = 255
    image = Image.fromarray(stored)
    exif = image.getexif()
    exif[0x0112] = 6
    (tmp_path / "c").mkdir()
    image.save(tmp_path / "c" / "0.png", exif=exif)
    Image.fromarray(np.zeros((3, 2), np.uint8)).save(tmp_path / "c" / "1.png")  # of the size that it has when turned
    dataset = read(tmp_path)
    both = np.concatenate([dataset.train.samples, dataset.test.samples])[..., 0]
    shown = both[both.any((1, 2))][0]
    assert shown.tolist() == [[255, 255], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (grey(), r"holds no images. Expected: a folder with CLASS/\*.jpg, CLIENT/CLASS/\*.jpg"),
        (
            {**GREY, "train/cat/z.png": ("L", (7, 5))},
            r"z.png is 7×5 but .*test/ant/0.png is 6×5. Expected: one size .* or data.size",
        ),
        ({**GREY, "test/dog/0.png": ("L", (6, 5))}, "test/dog: there is no such class in train. Accepted: ant, cat"),
        ({**GREY, "train/cat/deep.png": ("I;16", (6, 5))}, r"1 of 9 .*deep.png \(more than 8 bits per pixel"),
        (grey("test/c/1.png"), "has a folder test and no folder train"),
        ({**GREY, **grey("raw/cat/1.png")}, "has a folder raw beside train and test. Expected: only train and test"),
        (grey("1.png"), "1.png fit no layout"),
        (grey("a/x/1.png", "b/x/1.png"), "every class of every client has one image"),
    ],
)
def test_folders_that_will_not_do(tmp_path: Path, files: Files, message: str) -> None:
    write_images(tmp_path, files)
    with pytest.raises(RequestError, match=message):
        read(tmp_path)


def test_all_unreadable_files_are_named_at_once(tmp_path: Path) -> None:
    write_images(tmp_path, GREY)
    Image.fromarray(RNG.integers(0, 256, (5, 6), np.uint8)).save(tmp_path / "train" / "cat" / "cut.png")
    whole = (tmp_path / "train" / "cat" / "cut.png").read_bytes()
    (tmp_path / "train" / "cat" / "cut.png").write_bytes(whole[:-25])
    for i in range(11):
        (tmp_path / "train" / "ant" / f"text-{i:02}.png").write_text("no image")
    dataset = read(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (4, 4)
    (said,) = dataset.remarks
    assert "12 of 20 images cannot be read" in said
    assert said.count("text-") == 10
    assert said.endswith("and 2 more. They are left out")
    with pytest.raises(RequestError, match=r"12 of 20 images cannot be read: .* repair or remove these files"):
        read(tmp_path, unreadable="refuse")
    (tmp_path / "bad" / "c").mkdir(parents=True)
    (tmp_path / "bad" / "c" / "1.jpg").write_bytes(b"")
    with pytest.raises(RequestError, match=r"no image can be read: .*bad/c/1.jpg \(not an image\)"):
        read(tmp_path / "bad")
    with pytest.raises(RequestError, match=r"1.jpg is a file. Expected: a folder"):
        read(tmp_path / "bad" / "c" / "1.jpg")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write_images(tmp_path, grey("c/1.png", "c/2.png"))
    os.symlink(tmp_path, tmp_path / "c" / "up")
    assert len(read(tmp_path).train) == 1


def test_images_of_different_sizes_are_resized_once(tmp_path: Path) -> None:
    """Pillow's bilinear filter averages: a checkerboard of 0 and 200 becomes 100 where it shrinks by half."""
    write_images(tmp_path, {**GREY, "train/cat/z.png": ("L", (7, 9))})
    board = np.indices((8, 8)).sum(0) % 2 * 200
    Image.fromarray(board.astype(np.uint8)).save(tmp_path / "test" / "cat" / "board.png")
    dataset = read(tmp_path, size=4)
    assert dataset.train.samples.shape == (5, 4, 4, 1)
    assert (dataset.train.samples == 100).all()
    assert np.abs(dataset.test.samples[-1, 1:-1, 1:-1].astype(int) - 100).max() <= 2


def test_a_read_only_folder_is_only_read(tmp_path: Path) -> None:
    write_images(tmp_path / "data", grey(*(f"c/{i}.png" for i in range(5))))
    for folder in (tmp_path / "data" / "c", tmp_path / "data"):
        folder.chmod(0o555)
    try:
        assert len(read(tmp_path / "data").test) == 1
    finally:
        for folder in (tmp_path / "data", tmp_path / "data" / "c"):
            folder.chmod(0o755)


def test_the_digest_is_of_pixels_not_of_files(tmp_path: Path) -> None:
    picture = Image.fromarray(RNG.integers(0, 256, (5, 6), np.uint8))
    for name in ("a.png", "b.bmp"):
        picture.save(tmp_path / name)
    digests = set()
    for name in ("a.png", "b.bmp"):
        pixels = pixels_of(tmp_path / name, grey=True, side=0)
        assert not isinstance(pixels, str)
        digests.add(digest_of(pixels))
    assert len(digests) == 1
    assert digest_of(np.zeros((2, 3, 1), np.uint8)) != digest_of(np.zeros((3, 2, 1), np.uint8))
