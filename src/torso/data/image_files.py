"""Image files: which there are below a folder, and their pixels. What cannot be read is named, never raised one by one.

n files; images of H × W pixels with C channels.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from torso.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm"})
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # Pillow's others may start programs (EPS)
MOST_NAMED = 10  # files that a message names; of more it says how many
_GREY = frozenset({"1", "L", "LA", "La"})
_SIDEWAYS = frozenset({5, 6, 7, 8})  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112
_DEEP = "more than 8 bits per pixel"


class SeveralSizes(RequestError):
    """Images are of several sizes, and nobody has said which one they are to have."""


Content = Path | bytes
"""An image: a file, or what a file would hold."""
T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` on every item, in order; Pillow decodes outside Python's lock."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, items))


@dataclass(frozen=True)
class ImageFile:
    """A file below a root, and the folders on the way to it."""

    path: Path
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """The image files below a folder, sorted; `others` counts files that are no images by their suffix, and `empty`
    names folders without any image in them or below."""

    files: tuple[ImageFile, ...]
    others: int
    empty: tuple[str, ...]


def list_images(root: Path) -> Listing:
    """Everything below `root`; hidden files and folders are passed over, and links that lead in a circle."""
    files: list[ImageFile] = []
    others: list[Path] = []
    empty: list[str] = []

    def walk(folder: Path, way: tuple[str, ...], above: frozenset[tuple[int, int]]) -> int:
        here = folder.stat()
        if (here.st_dev, here.st_ino) in above:
            return 0
        above |= {(here.st_dev, here.st_ino)}
        found = 0
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if entry.is_dir():
                found += walk(Path(entry.path), (*way, entry.name), above)
            elif Path(entry.name).suffix.lower() in SUFFIXES:
                files.append(ImageFile(Path(entry.path), way))
                found += 1
            else:
                others.append(Path(entry.path))
        if not found:
            empty.append("/".join(way))
        return found

    try:
        walk(root, (), frozenset())
    except OSError as error:
        raise RequestError(f"{error.filename or root} cannot be read: {error.strerror or error}.") from None
    return Listing(tuple(files), len(others), tuple(name for name in empty if name))


@dataclass(frozen=True)
class Head:
    """What the beginning of a file says: height and width as a viewer shows them, and whether it has colours."""

    height: int
    width: int
    grey: bool
    turned: bool  # by its EXIF orientation


@dataclass(frozen=True)
class Broken:
    """A file that cannot be used, and why."""

    name: str
    reason: str


def open_image(content: Content) -> Image:
    from PIL import Image

    return Image.open(content if isinstance(content, Path) else io.BytesIO(content), formats=FORMATS)


def head_of(content: Content) -> Head | str:
    """What the file says of itself, or why it cannot be read."""
    try:
        with open_image(content) as image:
            if image.mode[0] in "IF":
                return too_deep(image.mode)
            turn = image.getexif().get(_ORIENTATION, 1)
            width, height = image.size[::-1] if turn in _SIDEWAYS else image.size
            return Head(height, width, image.mode in _GREY, turn not in (0, 1))
    except Exception as error:  # a damaged file makes Pillow raise a dozen unrelated exceptions
        return reason_of(error)


def pixels_of(content: Content, grey: bool, side: int) -> NDArray[np.uint8] | str:
    """uint8 [H, W, C] turned as EXIF says, or why it cannot be read.

    Resized to side × side unless that is 0, by Pillow's bilinear filter, which averages as it shrinks."""
    from PIL import Image, ImageOps

    try:
        with open_image(content) as image:
            if image.mode[0] in "IF":
                return too_deep(image.mode)
            found = ImageOps.exif_transpose(image).convert("L" if grey else "RGB")
            if side:
                found = found.resize((side, side), Image.Resampling.BILINEAR)
            return np.asarray(found).reshape(found.height, found.width, -1)
    except Exception as error:
        return reason_of(error)


def too_deep(mode: str) -> str:
    return f"{_DEEP} (mode {mode})"


def reason_of(error: Exception) -> str:
    """What is wrong with a file, in a few words."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):  # its text is the path, or the address of a buffer
        return "not an image"
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())[:120]


def digest_of(pixels: NDArray[np.uint8]) -> bytes:
    """Equal for images of the same pixels, whatever their files are."""
    found = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=16)
    found.update(np.ascontiguousarray(pixels).data)
    return found.digest()


@dataclass(frozen=True, eq=False)
class Decoded:
    """The images that can be read, which of the given ones they are, and the others."""

    images: NDArray[np.uint8]  # [m, H, W, C]
    rows: NDArray[np.int64]  # [m]
    broken: tuple[Broken, ...]


def decode(names: Sequence[str], contents: Sequence[Content], side: int) -> Decoded:
    """All images in one array: grey where all of them are, of one size or resized to `side`."""
    heads = in_threads(head_of, contents)
    known = [(n, head) for n, head in enumerate(heads) if isinstance(head, Head)]
    broken = {n: head for n, head in enumerate(heads) if isinstance(head, str)}
    if not known:
        raise nothing_left(_named(names, broken))
    first, (_, usual) = names[known[0][0]], known[0]
    for n, head in known:
        if not side and (head.height, head.width) != (usual.height, usual.width):
            raise SeveralSizes(
                f"{names[n]} is {head.width}×{head.height} but {first} is {usual.width}×{usual.height}. "
                "Expected: one size for all images, or data.size, such as 64, to which all are resized"
            )
    grey = all(head.grey for _, head in known)
    size = (side, side) if side else (usual.height, usual.width)
    images = np.empty((len(known), *size, 1 if grey else 3), np.uint8)

    def fill(place: int) -> str:
        found = pixels_of(contents[known[place][0]], grey, side)
        if isinstance(found, str):
            return found
        images[place] = found
        return ""

    faults = in_threads(fill, range(len(known)))
    broken |= {known[place][0]: fault for place, fault in enumerate(faults) if fault}
    whole = np.flatnonzero([not fault for fault in faults])
    if not len(whole):
        raise nothing_left(_named(names, broken))
    rows = np.array([n for n, _ in known], np.int64)[whole]
    return Decoded(images if len(whole) == len(images) else images[whole], rows, tuple(_named(names, broken)))


def _named(names: Sequence[str], broken: dict[int, str]) -> list[Broken]:
    return [Broken(names[n], reason) for n, reason in sorted(broken.items())]


def nothing_left(broken: Sequence[Broken]) -> RequestError:
    return RequestError(f"no image can be read: {listed(broken)}. Expected: 8-bit grey or colour images")


def listed(broken: Sequence[Broken]) -> str:
    """The first ten files with what is wrong with them, and how many more there are."""
    named = ", ".join(f"{file.name} ({file.reason})" for file in broken[:MOST_NAMED])
    return f"{named} and {len(broken) - MOST_NAMED} more" if len(broken) > MOST_NAMED else named


def told(broken: Sequence[Broken], policy: Literal["skip", "refuse"], total: int) -> tuple[str, ...]:
    """One sentence on all files that cannot be read, or a refusal that names them. Whole files with more bits than
    Torso reads are always refused: they are no accident."""
    if not broken:
        return ()
    said = f"{len(broken)} of {total} images cannot be read: {listed(broken)}"
    if policy == "refuse" or any(_DEEP in file.reason for file in broken):
        raise RequestError(f"{said}. Expected: 8-bit grey or colour images; repair or remove these files")
    return (f"{said}. They are left out",)
