"""A folder of image files: ROOT/train/CLASS/*.png and ROOT/test/CLASS/*.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torso.data.images import Dataset, Images, as_images
from torso.data.sources.base import in_threads, reading, root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

_EXPECTED = "a folder with train/CLASS/*.png and test/CLASS/*.png (or .jpg, .bmp, .webp, .tif, .pgm, .ppm)"
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}


@sources.register("folder")
def folder(options: DataConfig, seed: int) -> Dataset:
    """Your own image files: ROOT/train/CLASS/*.png and ROOT/test/CLASS/*.png (or .jpg, …), of one size
    or resized (`data.size`)."""
    root = root_of(options, _EXPECTED)
    (train, test), names = read_folders([root / "train", root / "test"], options.size)
    return Dataset(root.resolve().name, train, test, len(names), class_names=names)


def read_folders(splits: Sequence[Path], side: int) -> tuple[list[Images], tuple[str, ...]]:
    """The images of folders that hold CLASS/*.png, and the names of the classes, which are those of the first."""
    files = {split: _files(split) for split in splits}
    names = tuple(sorted(files[splits[0]]))
    for split in splits[1:]:
        strange = sorted(set(files[split]) - set(names))
        if strange:
            raise RequestError(
                f"{split / strange[0]}: there is no such class in {splits[0].name}. Accepted: {', '.join(names)}"
            )
    mode = _common_mode([path for by_class in files.values() for paths in by_class.values() for path in paths], side)

    def read(split: Path) -> Images:
        pairs = [(path, label) for label, name in enumerate(names) for path in files[split].get(name, [])]
        images = in_threads(lambda pair: _read(pair[0], mode, side), pairs)
        return as_images(str(split), np.stack(images), [label for _, label in pairs])

    return [read(split) for split in splits], names


def _files(split: Path) -> dict[str, list[Path]]:
    """The image files of each class, both sorted; hidden folders and other files are passed over."""
    with reading(split, _EXPECTED):
        classes = sorted(entry for entry in split.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        found = {c.name: sorted(p for p in c.iterdir() if p.suffix.lower() in _SUFFIXES) for c in classes}
    for name, paths in found.items():
        if not paths:
            raise RequestError(f"{split / name} holds no images. Expected: {_EXPECTED}")
    if not found:
        raise RequestError(f"{split} holds no class folders. Expected: {_EXPECTED}")
    return found


def _common_mode(paths: list[Path], side: int) -> str:
    """L where every file is 8-bit grey, else RGB; from the headers, which also must agree on the size unless a side is
    given."""
    heads = in_threads(_head, paths)
    for path, (size, mode) in zip(paths, heads, strict=True):
        if mode[0] in "IF":
            raise RequestError(f"{path} has more than 8 bits per pixel (mode {mode}). Expected: 8-bit grey or colour")
        if not side and size != heads[0][0]:
            first = "{}×{}".format(*heads[0][0])
            raise RequestError(
                f"{path} is {size[0]}×{size[1]} but {paths[0]} is {first}. Expected: one size for all images, or "
                "data.size, such as 64, to which all are resized"
            )
    return "L" if all(mode == "L" for _, mode in heads) else "RGB"


def _head(path: Path) -> tuple[tuple[int, int], str]:
    from PIL import Image

    with reading(path, "an image"), Image.open(path) as image:
        return image.size, image.mode


def _read(path: Path, mode: str, side: int) -> np.ndarray:
    """The pixels; resized to side × side unless it is 0, by Pillow's bilinear filter, which averages as it shrinks."""
    from PIL import Image

    with reading(path, "an image"), Image.open(path) as image:
        found = image.convert(mode)
        return np.asarray(found.resize((side, side), Image.Resampling.BILINEAR) if side else found)
