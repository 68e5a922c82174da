"""The source `folder`: image files in folders by class, or by client and class, with or without a test part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.image_files import ImageFile, Listing, decode, list_images, remarks_on_broken
from torso.data.images import Dataset, Images, Ints
from torso.data.naming import in_natural_order
from torso.data.parted import parted
from torso.data.sources.base import root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig, FolderConfig

LAYOUTS = "CLASS/*.jpg, CLIENT/CLASS/*.jpg, or either of them in train/ and test/"
_EXPECTED = f"a folder with {LAYOUTS} (or .png, .bmp, .webp, .tif, .pgm, .ppm)"
_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")  # the first name that exists is the test part


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
class ImageFolder:
    """The image files of a folder with their clients, classes and splits; n files."""

    files: tuple[Path, ...]
    test: tuple[bool, ...]  # [n], whether a file is in the test part
    client: Ints  # [n], number of the client; all 0 if the folders name no clients
    label: Ints  # [n], number of the class
    clients: tuple[str, ...]  # names; empty if the folders name no clients
    classes: tuple[str, ...]  # names
    parted: bool  # whether the folder has a test part
    remarks: tuple[str, ...]

    def names(self, root: Path) -> list[str]:
        """The paths of the files below `root`."""
        return [str(path.relative_to(root)) for path in self.files]


@dataclass(frozen=True, eq=False)
class FolderData:
    """The data set of a folder. If the folder has no test part, `dataset.test` is empty."""

    dataset: Dataset
    parted: bool  # whether the folder has a test part


def read_folder(root: Path, options: DataConfig, only_test: bool = False) -> FolderData:
    """The images of a folder. `only_test`: if it has a test part, only this is read, and is the training part."""
    if not root.is_dir():
        raise RequestError(f"{root} is a file. Expected: {_EXPECTED}")
    found = list_image_folder(root, options.folder, only_test)
    decoded = decode([str(path) for path in found.files], found.files, options.size)
    remarks = (*found.remarks, *remarks_on_broken(decoded.broken, options.folder.unreadable, len(found.files)))
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
    return FolderData(dataset, found.parted)


def list_image_folder(root: Path, how: FolderConfig, only_test: bool = False, strict: bool = True) -> ImageFolder:
    """The image files below `root` with their splits, clients and classes: by `data.folder.layout`, or if that is auto
    by the depth of the folders.

    Classes that only the test part has are refused; if not `strict`, they follow the other classes."""
    listing = list_images(root)
    if not listing.files:
        others = f" and {listing.others} other files" if listing.others else ""
        raise RequestError(f"{root} holds no images{others}. Expected: {_EXPECTED}")
    split, left_out = _splits(root, listing.files)
    files: Sequence[ImageFile] = listing.files
    folders = [file.folders for file in files]  # of each file, without those that tell train from test
    parted = False
    if split is not None:
        files = [file for file in files if split.of(file) in (split.train, split.test)]
        if only_test and split.test:
            files = [file for file in files if split.of(file) == split.test]
        folders = [(*file.folders[: split.level], *file.folders[split.level + 1 :]) for file in files]
        parted = bool(split.test) and not only_test
    depth = _depth(root, how.layout, files, folders)
    test = tuple(parted and split is not None and split.of(file) == split.test for file in files)
    class_names = [names[depth - 1] for names in folders]  # of each file
    classes = sorted({name for name, is_test in zip(class_names, test, strict=True) if not is_test})
    clients = in_natural_order({names[0] for names in folders}) if depth == 2 else []
    client_of = {name: number for number, name in enumerate(clients)}
    label_of = {name: number for number, name in enumerate(classes)}
    for file, name in zip(files, class_names, strict=True):
        if name in label_of:
            continue
        if strict:
            raise RequestError(
                f"{file.path.parent}: there is no such class in train. Accepted: {', '.join(classes[:20])}"
            )
        label_of[name] = len(classes)
        classes.append(name)
    return ImageFolder(
        files=tuple(file.path for file in files),
        test=test,
        client=np.array([client_of.get(names[0], 0) for names in folders], np.int64),
        label=np.array([label_of[name] for name in class_names], np.int64),
        clients=tuple(clients),
        classes=tuple(classes),
        parted=parted,
        remarks=(*_remarks(listing, left_out), *_upside_down(folders, depth, how)),
    )


@dataclass(frozen=True)
class _Split:
    """The level of folders that tells train from test, and their names there."""

    level: int  # 0: the folders in the root, 1: the folders in these
    train: str
    test: str  # "": there is no test part

    def of(self, file: ImageFile) -> str:
        """The name of the file's folder at this level."""
        return file.folders[self.level]


def _splits(root: Path, files: Sequence[ImageFile]) -> tuple[_Split | None, list[str]]:
    """The level of the folders train and test, at the top or in each client's folder; None: there are none. Also the
    names of further test folders, which are not used."""
    for level in (0, 1):
        if any(len(file.folders) < level + 2 for file in files):
            continue  # the folder may be a class with the name train
        names = Counter(file.folders[level] for file in files)
        train = [name for name in names if name.lower() in _TRAIN]
        test = [name for wanted in _TEST for name in names if name.lower() == wanted]
        others = sorted(set(names) - {*train, *test})
        if not others and not train:
            raise RequestError(f"{root} has a folder {test[0]} and no folder train. Expected: {_EXPECTED}")
        if others and level == 0 and train and test:
            raise RequestError(
                f"{root} has a folder {others[0]} beside {train[0]} and {test[0]}. Expected: only train and test "
                "there, or no such folders"
            )
        if not others and len(train) == 1:
            unused = [f"{name} (images: {names[name]})" for name in test[1:]]
            return _Split(level, train[0], test[0] if test else ""), unused
    return None, []


def _depth(root: Path, layout: str, files: Sequence[ImageFile], folders: Sequence[tuple[str, ...]]) -> int:
    """1: the folders are classes; 2: the folders are clients, and the folders in them are classes."""
    depths = {len(names): file for file, names in zip(files, folders, strict=True)}
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


def _upside_down(folders: Sequence[tuple[str, ...]], depth: int, how: FolderConfig) -> list[str]:
    """A remark if the folders taken for clients may be classes, because no class occurs at two of them."""
    if depth == 1 or how.layout != "auto":
        return []
    pairs = {names[:2] for names in folders}
    if len({client for client, _ in pairs}) < 2 or len({label for _, label in pairs}) < len(pairs):
        return []
    return [
        "folders are read as CLIENT/CLASS, and no two clients have a class in common. If the upper folders are "
        "classes, set data.folder.layout = class"
    ]


def _remarks(listing: Listing, left_out: Sequence[str]) -> list[str]:
    remarks = []
    if listing.others:
        remarks.append(f"files passed over because they are not images: {listing.others}")
    if listing.empty:
        some = ", ".join(listing.empty[:5]) + (" …" if len(listing.empty) > 5 else "")
        remarks.append(f"folders without images: {len(listing.empty)} ({some})")
    if left_out:
        remarks.append(f"not used, since there is a test part already: {' and '.join(left_out)}")
    return remarks
