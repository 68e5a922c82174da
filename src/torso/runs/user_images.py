"""Convert images of any size, colour and orientation to a model's kind of input, and tell what was changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from torso.data.image_files import in_threads, open_image, reason_of, too_many_bits
from torso.data.inputs import Pixels
from torso.errors import RequestError

MOST_PIXELS = 64_000_000  # limit of an image, since a small file may unpack to very many pixels
_EXPECTED = "an image (PNG, JPEG, WebP, BMP, GIF, TIFF, PPM)"
_MODES = {1: "L", 3: "RGB"}
_COLOURS = {"L": "grey", "RGB": "colour", "RGBA": "colour with transparency", "P": "a palette", "1": "black and white"}


@dataclass(frozen=True, eq=False)
class FittedImage:
    """An image with the model's size and channels, and how it was before."""

    pixels: NDArray[np.uint8]  # [H, W, C]
    size: tuple[int, int]  # original width and height, after it was turned upright
    mode: str  # original mode of Pillow
    turned: bool  # whether it was turned by its EXIF orientation


def read_pictures(paths: Sequence[Path], kind: Pixels) -> list[FittedImage | RequestError]:
    """The images of files, each fitted to the model. An unreadable file gives an error in place of its image."""

    def read(path: Path) -> FittedImage | RequestError:
        try:
            return decoded(str(path), path.read_bytes(), kind)
        except OSError as error:
            return RequestError(f"{path} cannot be read: {error.strerror or error}. Expected: {_EXPECTED}")
        except RequestError as error:
            return error

    _channels(kind)
    return in_threads(read, paths)


def decoded(where: str, raw: bytes, kind: Pixels) -> FittedImage:
    """The image in the bytes of a file. Its number of pixels is checked before they are unpacked."""
    try:
        with open_image(raw) as image:
            if image.width * image.height > MOST_PIXELS:
                raise RequestError(
                    f"{where} has {image.width}×{image.height} pixels. Expected: at most {MOST_PIXELS // 10**6} million"
                )
            return fitted(where, image, kind)
    except RequestError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise a dozen unrelated exceptions
        raise RequestError(f"{where} cannot be read ({reason_of(error)}). Expected: {_EXPECTED}") from None


def fitted(where: str, image: Any, kind: Pixels) -> FittedImage:
    """An image of Pillow, or a uint8 array [H, W] or [H, W, C], as the model takes it: upright, its colours and size.

    Resizing does not keep the proportions and uses Pillow's bilinear filter, as reading training data does."""
    mode = _MODES[_channels(kind)]
    image = image if isinstance(image, Image.Image) else _from_array(where, image)
    if image.mode[0] in "IF":
        raise RequestError(f"{where} has {too_many_bits(image.mode)}. Expected: 8-bit grey or colour")
    turned = image.getexif().get(0x0112, 1) not in (0, 1)
    upright = ImageOps.exif_transpose(image) if turned else image
    found = upright.convert(mode)
    wanted = (kind.width, kind.height)
    pixels = np.array(found if found.size == wanted else found.resize(wanted, Image.Resampling.BILINEAR))
    return FittedImage(pixels.reshape(kind.height, kind.width, kind.channels), upright.size, image.mode, turned)


def _channels(kind: Pixels) -> int:
    if kind.channels not in _MODES:
        raise RequestError(
            f"the model takes {kind.words}, and image files have 1 or 3. Expected: an .npz file with images"
        )
    return kind.channels


def _from_array(where: str, array: Any) -> Image.Image:
    found = np.asarray(array)
    if (
        found.dtype != np.uint8
        or not (found.ndim == 2 or (found.ndim == 3 and found.shape[2] in (1, 3)))
        or 0 in found.shape
    ):
        raise RequestError(
            f"{where} is {found.dtype} {list(found.shape)}. "
            "Expected: uint8 [height, width] or [height, width, channels]"
        )
    return Image.fromarray(found[..., 0] if found.ndim == 3 and found.shape[2] == 1 else found)


def remarks_on(pictures: Sequence[FittedImage], kind: Pixels) -> tuple[str, ...]:
    """Remarks about what was changed in images, one for each kind of change."""
    wanted = (kind.width, kind.height)
    mode = _MODES.get(kind.channels, "")
    every = len(pictures)
    said = []
    resized = [picture for picture in pictures if picture.size != wanted]
    if resized:
        width, height = resized[0].size
        sizes = len({picture.size for picture in resized})
        from_ = f"{width}×{height}" if sizes == 1 else f"{sizes} sizes, the first {width}×{height}"
        is_distorted = any(p.size[0] * kind.height != p.size[1] * kind.width for p in resized)
        proportions = "; the proportions changed" if is_distorted else ""
        said.append(f"{_of(len(resized), every)} resized to {kind.width}×{kind.height} (from {from_}{proportions})")
    for before, count in Counter(p.mode for p in pictures if p.mode != mode).items():
        said.append(f"{_of(count, every)} converted from {_COLOURS.get(before, before)} to {_COLOURS[mode]}")
    turned = sum(picture.turned for picture in pictures)
    if turned:
        said.append(f"{_of(turned, every)} turned upright, as the EXIF data say")
    return tuple(said)


def _of(count: int, every: int) -> str:
    if every == 1:
        return "the image was"
    if count == every:
        return f"all {every} images were"
    return f"{count} of {every} images {'was' if count == 1 else 'were'}"
