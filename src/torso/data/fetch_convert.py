"""Conversion of downloaded archives into one .npz file each, which the sources read.

Members of an archive are read in memory and never written under their own names, so a hostile archive cannot place a
file anywhere. Sizes are bounded: an archive that unpacks to more than its data set should have is refused.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from torso.data.fetch_sets import DataSet
from torso.data.fetch_writers import read_femnist
from torso.data.sources.base import reading
from torso.data.sources.idx import parse_idx
from torso.errors import RequestError

Arrays = dict[str, Any]
Step = Callable[[int, int], None]
"""Called with the number of finished steps and their total."""

_MOST_IDX = 1 << 30  # bytes of one unpacked IDX file; the largest of EMNIST has 547 million
_MOST_TEXT = 1 << 24
_MOST_IMAGE = 1 << 20
_CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def convert(data: DataSet, folder: Path, step: Step) -> None:
    """Convert the files of a data set into the .npz file `data.makes` in the folder. It is written completely or not at
    all."""
    paths = [folder / file.name for file in data.files]
    with reading(paths[0], f"the official files of {data.name}"):
        arrays = _reader(data.name)(paths, step)
    target = folder / data.makes
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            save = np.savez_compressed if data.name.startswith(("emnist", "femnist")) else np.savez
            save(file, **{"name": np.array([data.name]), **arrays})
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise RequestError(f"{target} cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)


def _reader(name: str) -> Callable[[list[Path], Step], Arrays]:
    if name.startswith("emnist-"):
        return lambda paths, step: _emnist(paths[0], name.removeprefix("emnist-"), step)
    return {
        "svhn": _svhn,
        "tiny-imagenet": lambda paths, step: _tiny_imagenet(paths[0], step),
        "cinic10": lambda paths, step: _cinic(paths[0], step),
        "femnist": lambda paths, step: read_femnist(paths[0], step),
    }[name]


# --- EMNIST ----------------------------------------------------------------------------------------------------------


def _emnist(path: Path, split: str, step: Step) -> Arrays:
    """A split of EMNIST from gzip'd IDX files in a zip, in which rows and columns of images are exchanged."""
    arrays: Arrays = {}
    with zipfile.ZipFile(path) as archive:
        lines = _text(archive, f"gzip/emnist-{split}-mapping.txt").splitlines()
        codes = {int(label): chr(int(code)) for label, code, *_ in (line.split() for line in lines if line.strip())}
        known_labels = sorted(codes)  # they begin at 0; those of the split letters at 1
        for number, part in enumerate(("train", "test")):
            step(number, 2)
            stem = f"gzip/emnist-{split}-{part}"
            images = _idx(archive, f"{stem}-images-idx3-ubyte.gz", 3)
            labels = _idx(archive, f"{stem}-labels-idx1-ubyte.gz", 1)
            arrays[f"{part}_images"] = np.ascontiguousarray(images.transpose(0, 2, 1))
            arrays[f"{part}_labels"] = np.searchsorted(known_labels, labels)
            if not np.isin(labels, known_labels).all():
                raise RequestError(f"{path}: {stem} has labels that its mapping does not contain")
    step(2, 2)
    return {**arrays, "class_names": np.array([codes[label] for label in known_labels])}


def _idx(archive: zipfile.ZipFile, name: str, dimensions: int) -> np.ndarray:
    packed = gzip.GzipFile(fileobj=io.BytesIO(_member(archive, name, _MOST_IDX)))
    return parse_idx(_bounded(packed, _MOST_IDX, name), name, dimensions)


# --- SVHN ------------------------------------------------------------------------------------------------------------


def _svhn(paths: list[Path], step: Step) -> Arrays:
    """SVHN from MATLAB files with X [32, 32, 3, n] and y [n, 1], in which 10 stands for the digit 0."""
    from scipy.io import loadmat

    arrays: Arrays = {}
    for number, (part, path) in enumerate(zip(("train", "test"), paths, strict=True)):
        step(number, 2)
        found = loadmat(path, variable_names=("X", "y"))
        arrays[f"{part}_images"] = np.ascontiguousarray(found["X"].transpose(3, 0, 1, 2))
        arrays[f"{part}_labels"] = found["y"].reshape(-1).astype(np.int64) % 10
    step(2, 2)
    return {**arrays, "class_names": np.array(list("0123456789"))}


# --- Tiny ImageNet ---------------------------------------------------------------------------------------------------


def _tiny_imagenet(path: Path, step: Step) -> Arrays:
    """Tiny ImageNet: training images by class, and the validation images as test images, because those of the test
    split have no labels."""
    top = "tiny-imagenet-200"
    with zipfile.ZipFile(path) as archive:
        ids = sorted(_text(archive, f"{top}/wnids.txt").split())
        notes = [line.split("\t") for line in _text(archive, f"{top}/val/val_annotations.txt").splitlines()]
        pattern = re.compile(rf"{top}/train/(n\d+)/images/\1_(\d+)\.JPEG")
        train = sorted((m[1], int(m[2]), m[0]) for m in map(pattern.fullmatch, archive.namelist()) if m)
        test = sorted((note[1], int(note[0][4:-5]), f"{top}/val/images/{note[0]}") for note in notes if len(note) > 1)
        words = dict(line.split("\t", 1) for line in _text(archive, f"{top}/words.txt").splitlines() if "\t" in line)
        total = len(train) + len(test)
        if not 0 < total <= 200_000:
            raise RequestError(f"{path} has {total:,} images. Expected: 110,000")
        arrays: Arrays = {}
        for part, rows, done in (("train", train, 0), ("test", test, len(train))):
            images = np.empty((len(rows), 64, 64, 3), np.uint8)
            for place, (_, _, name) in enumerate(rows):
                images[place] = _pixels(_member(archive, name, _MOST_IMAGE), "JPEG", 64, name)
                if place % 500 == 0:
                    step(done + place, total)
            arrays[f"{part}_images"] = images
            arrays[f"{part}_labels"] = np.array([ids.index(row[0]) for row in rows])
    step(total, total)
    return {**arrays, "class_names": np.array(_class_names(ids, words))}


def _class_names(ids: list[str], words: dict[str, str]) -> list[str]:
    """The first word of each class; the id is added if two classes have the same first word."""
    first_words = [words.get(wnid, wnid).split(",")[0].strip() or wnid for wnid in ids]
    return [
        word if first_words.count(word) == 1 else f"{word} ({wnid})"
        for word, wnid in zip(first_words, ids, strict=True)
    ]


# --- CINIC-10 --------------------------------------------------------------------------------------------------------


def _cinic(path: Path, step: Step) -> Arrays:
    """CINIC-10 from PNG files train/CLASS/NAME.png and test/CLASS/NAME.png, in the order of their names."""
    found: dict[str, list[tuple[int, str, np.ndarray]]] = {"train": [], "test": []}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            parts = member.name.removeprefix("./").split("/")
            if not member.isfile() or len(parts) != 3 or parts[0] not in found or parts[1] not in _CINIC:
                continue
            content = archive.extractfile(member)
            assert content is not None
            pixels = _pixels(_bounded(content, _MOST_IMAGE, member.name), "PNG", 32, member.name)
            found[parts[0]].append((_CINIC.index(parts[1]), parts[2], pixels))
            count = sum(map(len, found.values()))
            if count > 200_000:
                raise RequestError(f"{path} has more than 200,000 images. Expected: 180,000")
            if count % 500 == 0:
                step(count, 180_000)
    arrays: Arrays = {}
    for part, rows in found.items():
        if not rows:
            raise RequestError(f"{path} has no {part}/CLASS/*.png. Expected: CINIC-10.tar.gz as distributed")
        rows.sort(key=lambda row: row[:2])
        arrays[f"{part}_images"] = np.stack([pixels for _, _, pixels in rows])
        arrays[f"{part}_labels"] = np.array([label for label, _, _ in rows])
    step(180_000, 180_000)
    return {**arrays, "class_names": np.array(_CINIC)}


# --- shared ----------------------------------------------------------------------------------------------------------


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """The content of one member; refused if it has more than `most` bytes."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise RequestError(f"{archive.filename} has no {name}") from None
    if info.file_size > most:
        raise RequestError(f"{archive.filename}: {name} has {info.file_size:,} bytes. Expected: at most {most:,}")
    with archive.open(info) as file:
        return _bounded(file, most, name)


def _bounded(file: IO[bytes] | gzip.GzipFile, most: int, name: str) -> bytes:
    """The content of a file; refused if it has more than `most` bytes, whatever its header claims."""
    content = file.read(most + 1)
    if len(content) > most:
        raise RequestError(f"{name} unpacks to more than {most:,} bytes")
    return content


def _text(archive: zipfile.ZipFile, name: str) -> str:
    return _member(archive, name, _MOST_TEXT).decode("utf-8")


def _pixels(content: bytes, kind: str, side: int, name: str) -> np.ndarray:
    """An image as uint8 [side, side, 3]. Its size is checked before the pixels are decoded."""
    from PIL import Image

    with reading(name, f"an image of {side}×{side}"), Image.open(io.BytesIO(content), formats=[kind]) as image:
        if image.size != (side, side):
            raise RequestError(f"{name} is {image.width}×{image.height}. Expected: {side}×{side}")
        return np.asarray(image.convert("RGB"))
