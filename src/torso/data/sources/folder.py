"""A folder of image files: by class, by client and class, with a train and a test part or without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.image_files import ImageFile, Listing, decode, list_images, told
from torso.data.images import Dataset, Images, Ints
from torso.data.naming import by_name
from torso.data.parted import parted
from torso.data.sources.base import root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig, FolderConfig

LAYOUTS = "CLASS/*.jpg, CLIENT/CLASS/*.jpg, or either of them in train/ and test/"
_EXPECTED = f"a folder with {LAYOUTS} (or .png, .bmp, .webp, .tif, .pgm, .ppm)"
_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")  # the first that is there


@sources.register("folder")
def folder(options: DataConfig, seed: int) -> Dataset:
    """Your own image files: CLASS/*.jpg, CLIENT/CLASS/*.jpg, or either in train/ and test/; of one size or resized
    (`data.size`). Without test/, a part is held out (`data.folder.test_share`)."""
    root = root_of(options, _EXPECTED)
    found = read_folder(root, options)
    if found.parted:
        return found.dataset
    rows = parted(found.dataset.train.writers, found.dataset.train.labels, options.folder.test_share)
    train, test = (found.dataset.train.take(part) for part in rows)
    if not len(test):
        raise RequestError(
            f"{root}: every class of every client has one image, so nothing can be held out to test on. "
            "Expected: two or more in some class, or a folder test"
        )
    return replace(found.dataset, train=train, test=test)


@dataclass(frozen=True)
class Arranged:
    """Whose each image file is, and of which class. `clients` is empty where the folders name none."""

    files: tuple[Path, ...]
    test: tuple[bool, ...]
    client: Ints
    label: Ints
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    parted: bool  # whether the folder says what is for testing
    remarks: tuple[str, ...]

    def names(self, root: Path) -> list[str]:
        return [str(path.relative_to(root)) for path in self.files]


@dataclass(frozen=True, eq=False)
class Read:
    """All that was read; where nothing is for testing, `dataset.test` is empty."""

    dataset: Dataset
    parted: bool


def read_folder(root: Path, options: DataConfig, only_test: bool = False) -> Read:
    """The images of a folder. `only_test`: where it has a test part, that alone, as the training part."""
    if not root.is_dir():
        raise RequestError(f"{root} is a file. Expected: {_EXPECTED}")
    found = arranged(root, options.folder, only_test)
    decoded = decode([str(path) for path in found.files], found.files, options.size)
    remarks = (*found.remarks, *told(decoded.broken, options.folder.unreadable, len(found.files)))
    test = np.array(found.test)[decoded.rows]
    label, client = found.label[decoded.rows], found.client[decoded.rows]
    splits = []
    for part in (np.flatnonzero(~test), np.flatnonzero(test)):
        images = decoded.images if len(part) == len(test) else decoded.images[part]
        splits.append(Images(images, label[part], client[part] if found.clients else None))
    if not len(splits[0]) or (found.parted and not len(splits[1])):
        which = "training" if not len(splits[0]) else "test"
        raise RequestError(f"{root}: no {which} image can be read. Expected: {_EXPECTED}")
    dataset = Dataset(
        root.resolve().name,
        train=splits[0],
        test=splits[1],
        classes=len(found.classes),
        names=found.clients,
        class_names=found.classes,
        remarks=tuple(f"data.source = 'folder': {remark}" for remark in remarks),
    )
    return Read(dataset, found.parted)


def arranged(root: Path, how: FolderConfig, only_test: bool = False, strict: bool = True) -> Arranged:
    """The files below `root` by split, client and class, as `data.folder.layout` says or their depth shows.

    Classes that only the test part has are refused, or come last where that is not `strict`."""
    listing = list_images(root)
    if not listing.files:
        others = f" and {listing.others} other files" if listing.others else ""
        raise RequestError(f"{root} holds no images{others}. Expected: {_EXPECTED}")
    split, left_out = _splits(root, listing.files)
    level = 0 if split is None else split.level
    chosen = [file for file in listing.files if split is None or split.of(file) in (split.train, split.test)]
    if only_test and split is not None and split.test:
        chosen = [file for file in chosen if split.of(file) == split.test]
    ways = [file.folders if split is None else (*file.folders[:level], *file.folders[level + 1 :]) for file in chosen]
    depth = _depth(root, how.layout, chosen, ways)
    both = split is not None and bool(split.test) and not only_test
    test = tuple(both and split is not None and split.of(file) == split.test for file in chosen)
    classes = sorted({way[depth - 1] for way, held in zip(ways, test, strict=True) if not held})
    clients = by_name({way[0] for way in ways}) if depth == 2 else []
    client_of, label_of = ({name: n for n, name in enumerate(names)} for names in (clients, classes))
    for file, way, held in zip(chosen, ways, test, strict=True):
        if held and way[depth - 1] not in label_of:
            if not strict:
                label_of[way[depth - 1]] = len(classes)
                classes.append(way[depth - 1])
                continue
            raise RequestError(
                f"{file.path.parent}: there is no such class in train. Accepted: {', '.join(classes[:20])}"
            )
    return Arranged(
        files=tuple(file.path for file in chosen),
        test=test,
        client=np.array([client_of.get(way[0], 0) for way in ways], np.int64),
        label=np.array([label_of[way[depth - 1]] for way in ways], np.int64),
        clients=tuple(clients),
        classes=tuple(classes),
        parted=both,
        remarks=(*_remarks(listing, left_out), *_upside_down(ways, depth, how)),
    )


@dataclass(frozen=True)
class _Split:
    """At which level of folders train and test are told apart, and what they are called."""

    level: int
    train: str
    test: str  # "": there is none

    def of(self, file: ImageFile) -> str:
        return file.folders[self.level]


def _splits(root: Path, files: Sequence[ImageFile]) -> tuple[_Split | None, list[str]]:
    """Where every file has a folder train or test above it, at the top or below its client's; and what is left out."""
    for level in (0, 1):
        if any(len(file.folders) < level + 2 for file in files):
            continue  # a class may be called train
        names = Counter(file.folders[level] for file in files)
        train = [name for name in names if name.lower() in _TRAIN]
        known = [name for wanted in _TEST for name in names if name.lower() == wanted]
        strange = sorted(set(names) - {*train, *known})
        if not strange and not train:
            raise RequestError(f"{root} has a folder {known[0]} and no folder train. Expected: {_EXPECTED}")
        if strange and level == 0 and train and known:
            raise RequestError(
                f"{root} has a folder {strange[0]} beside {train[0]} and {known[0]}. Expected: only train and test "
                "there, or no such folders"
            )
        if not strange and len(train) == 1:
            left = [f"{name} (images: {names[name]})" for name in known[1:]]
            return _Split(level, train[0], known[0] if known else ""), left
    return None, []


def _depth(root: Path, layout: str, files: Sequence[ImageFile], ways: Sequence[tuple[str, ...]]) -> int:
    """1: a folder is a class; 2: a folder is a client, and those in it are classes."""
    depths = {len(way): file for file, way in zip(files, ways, strict=True)}
    wanted = {"class": 1, "client/class": 2}.get(layout, 0)
    if wanted:
        for depth, file in sorted(depths.items()):
            if depth < wanted:
                raise RequestError(
                    f"data.folder.layout = {layout!r}, and {file.path} has {depth} folders above it in {root}. "
                    f"Expected: {wanted} or more"
                )
        return wanted
    if set(depths) in ({1}, {2}):
        return depths.popitem()[0]
    few, many = depths[min(depths)].path, depths[max(depths)].path
    which = f"{few} and {many}" if few != many else f"{few}"
    raise RequestError(
        f"{root}: {which} fit no layout. Expected: {LAYOUTS}; or say which: data.folder.layout = class or client/class"
    )


def _upside_down(ways: Sequence[tuple[str, ...]], depth: int, how: FolderConfig) -> list[str]:
    """A word where what was taken for clients may be classes: no class is found at two of them."""
    if depth == 1 or how.layout != "auto":
        return []
    pairs = {way[:2] for way in ways}
    if len({client for client, _ in pairs}) < 2 or len({label for _, label in pairs}) < len(pairs):
        return []
    return [
        "folders are read as CLIENT/CLASS, and no two clients have a class in common. If the upper folders are "
        "classes, set data.folder.layout = class"
    ]


def _remarks(listing: Listing, left_out: Sequence[str]) -> list[str]:
    said = []
    if listing.others:
        said.append(f"files passed over because they are not images: {listing.others}")
    if listing.empty:
        some = ", ".join(listing.empty[:5]) + (" …" if len(listing.empty) > 5 else "")
        said.append(f"folders without images: {len(listing.empty)} ({some})")
    if left_out:
        said.append(f"not used, since there is a test part already: {' and '.join(left_out)}")
    return said
