"""Image files: listing those below a folder, and decoding them. Unreadable files are collected and reported together.

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
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # other formats of Pillow may start programs (EPS)
MOST_NAMED = 10  # files that a message names; the rest are counted
_GREY = frozenset({"1", "L", "LA", "La"})
_SIDEWAYS = frozenset({5, 6, 7, 8})  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112
_DEEP = "more than 8 bits per pixel"


class SeveralSizes(RequestError):
    """Images have different sizes, and no size is given to which they should be resized."""


Content = Path | bytes
"""An encoded image: the path of a file, or the bytes of one."""
T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of `work` on every item, in order. Threads help because Pillow decodes outside Python's lock."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, items))


@dataclass(frozen=True)
class ImageFile:
    """An image file, and the names of the folders between the root and it."""

    path: Path
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """The image files below a folder."""

    files: tuple[ImageFile, ...]  # sorted
    others: int  # number of files whose suffix is not that of an image
    empty: tuple[str, ...]  # folders without any image in them or below


def list_images(root: Path) -> Listing:
    """All image files below `root`. Hidden files and folders are left out; links that lead in a circle are not
    followed."""
    files: list[ImageFile] = []
    others: list[Path] = []
    empty: list[str] = []

    def walk(folder: Path, names: tuple[str, ...], above: frozenset[tuple[int, int]]) -> int:
        """List a folder; returns its number of images. `names` and `above`: the folders on the way to it."""
        status = folder.stat()
        if (status.st_dev, status.st_ino) in above:
            return 0
        above |= {(status.st_dev, status.st_ino)}
        images = 0
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if entry.is_dir():
                images += walk(Path(entry.path), (*names, entry.name), above)
            elif Path(entry.name).suffix.lower() in SUFFIXES:
                files.append(ImageFile(Path(entry.path), names))
                images += 1
            else:
                others.append(Path(entry.path))
        if not images:
            empty.append("/".join(names))
        return images

    try:
        walk(root, (), frozenset())
    except OSError as error:
        raise RequestError(f"{error.filename or root} cannot be read: {error.strerror or error}.") from None
    return Listing(tuple(files), len(others), tuple(name for name in empty if name))


@dataclass(frozen=True)
class ImageHeader:
    """The header of an image file: its size as a viewer shows it, and whether it is grey."""

    height: int  # pixels
    width: int
    grey: bool
    turned: bool  # whether its EXIF orientation turns or mirrors it


@dataclass(frozen=True)
class Broken:
    """A file that cannot be used, with the reason."""

    name: str
    reason: str


def open_image(content: Content) -> Image:
    from PIL import Image

    return Image.open(content if isinstance(content, Path) else io.BytesIO(content), formats=FORMATS)


def header_of(content: Content) -> ImageHeader | str:
    """The header of an image, or the reason why it cannot be read."""
    try:
        with open_image(content) as image:
            if image.mode[0] in "IF":
                return too_many_bits(image.mode)
            turn = image.getexif().get(_ORIENTATION, 1)
            width, height = image.size[::-1] if turn in _SIDEWAYS else image.size
            return ImageHeader(height, width, image.mode in _GREY, turn not in (0, 1))
    except Exception as error:  # a damaged file makes Pillow raise a dozen unrelated exceptions
        return reason_of(error)


def pixels_of(content: Content, grey: bool, side: int) -> NDArray[np.uint8] | str:
    """The pixels uint8 [H, W, C], turned by the EXIF orientation, or the reason why the image cannot be read.

    It is resized to side × side (0: not resized) by Pillow's bilinear filter, which averages pixels when it shrinks."""
    from PIL import Image, ImageOps

    try:
        with open_image(content) as image:
            if image.mode[0] in "IF":
                return too_many_bits(image.mode)
            upright = ImageOps.exif_transpose(image).convert("L" if grey else "RGB")
            if side:
                upright = upright.resize((side, side), Image.Resampling.BILINEAR)
            return np.asarray(upright).reshape(upright.height, upright.width, -1)
    except Exception as error:
        return reason_of(error)


def too_many_bits(mode: str) -> str:
    """The reason why an image with a 16- or 32-bit mode of Pillow is refused."""
    return f"{_DEEP} (mode {mode})"


def reason_of(error: Exception) -> str:
    """The reason why a file cannot be read, in a few words."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):  # its text is only the path, or the address of a buffer
        return "not an image"
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())[:120]


def digest_of(pixels: NDArray[np.uint8]) -> bytes:
    """A checksum of the pixels, equal for files of different formats with the same pixels."""
    digest = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """The result of decoding several images: the pixels of the readable ones, and the broken ones."""

    images: NDArray[np.uint8]  # [m, H, W, C], the readable images
    rows: NDArray[np.int64]  # [m], their places among the given images
    broken: tuple[Broken, ...]


def decode(names: Sequence[str], contents: Sequence[Content], side: int) -> DecodedImages:
    """Decode all images into one array: grey if all of them are grey, of one size or resized to `side`."""
    headers = in_threads(header_of, contents)
    readable = [(row, header) for row, header in enumerate(headers) if isinstance(header, ImageHeader)]
    broken = {row: reason for row, reason in enumerate(headers) if isinstance(reason, str)}
    if not readable:
        raise nothing_left(_named(names, broken))
    first_row, first = readable[0]
    for row, header in readable:
        if not side and (header.height, header.width) != (first.height, first.width):
            raise SeveralSizes(
                f"{names[row]} is {header.width}×{header.height} but {names[first_row]} is {first.width}×{first.height}"
                ". "
                "Expected: one size for all images, or data.size, such as 64, to which all are resized"
            )
    grey = all(header.grey for _, header in readable)
    size = (side, side) if side else (first.height, first.width)
    images = np.empty((len(readable), *size, 1 if grey else 3), np.uint8)

    def fill(place: int) -> str:
        """Decode one image into `images`; returns the reason if it cannot be read, otherwise an empty text."""
        pixels = pixels_of(contents[readable[place][0]], grey, side)
        if isinstance(pixels, str):
            return pixels
        images[place] = pixels
        return ""

    reasons = in_threads(fill, range(len(readable)))
    broken |= {readable[place][0]: reason for place, reason in enumerate(reasons) if reason}
    whole = np.flatnonzero([not reason for reason in reasons])
    if not len(whole):
        raise nothing_left(_named(names, broken))
    rows = np.array([row for row, _ in readable], np.int64)[whole]
    return DecodedImages(images if len(whole) == len(images) else images[whole], rows, tuple(_named(names, broken)))


def _named(names: Sequence[str], broken: dict[int, str]) -> list[Broken]:
    return [Broken(names[row], reason) for row, reason in sorted(broken.items())]


def nothing_left(broken: Sequence[Broken]) -> RequestError:
    """The error for images none of which can be read."""
    return RequestError(f"no image can be read: {listed(broken)}. Expected: 8-bit grey or colour images")


def listed(broken: Sequence[Broken]) -> str:
    """The first ten broken files with their reasons, and the number of the others."""
    named = ", ".join(f"{file.name} ({file.reason})" for file in broken[:MOST_NAMED])
    return f"{named} and {len(broken) - MOST_NAMED} more" if len(broken) > MOST_NAMED else named


def remarks_on_broken(broken: Sequence[Broken], policy: Literal["skip", "refuse"], total: int) -> tuple[str, ...]:
    """A remark on all broken files; with the policy `refuse` a RequestError that names them.

    Intact files with more bits per pixel than Torso reads are always refused: they are not broken by accident."""
    if not broken:
        return ()
    remark = f"{len(broken)} of {total} images cannot be read: {listed(broken)}"
    if policy == "refuse" or any(_DEEP in file.reason for file in broken):
        raise RequestError(f"{remark}. Expected: 8-bit grey or colour images; repair or remove these files")
    return (f"{remark}. They are left out",)
