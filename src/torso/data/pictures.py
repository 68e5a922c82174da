"""Conversion of the images that users pass for prediction to the stored format: Pillow images, arrays with the channels
last or first, one image or many.

n images of H × W pixels with C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torso.data.image_files import too_many_bits
from torso.data.inputs import Array, Pixels
from torso.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # number of channels → mode of Pillow
_EXPECTED = "uint8 (0 to 255)"


def as_stored(kind: Pixels, samples: Any) -> Any:
    """Images as [n, H, W, C], from a Pillow image or an array, or from a list of them; an array may also be
    [n, C, H, W], one image ([H, W, C], [C, H, W]) or, of grey images, [n, H, W] or [H, W].

    Nothing is resized. An array of any other shape is returned unchanged; `Pixels.accept` then refuses it."""
    if isinstance(samples, Sequence) and len(samples) and not isinstance(samples, str | bytes):
        if all(_is_single(sample) for sample in samples):
            return np.concatenate([_one(kind, sample, f"image {place}") for place, sample in enumerate(samples)])
    elif _is_pillow(samples):
        return _of_pillow(kind, samples, "the image")
    array = np.asarray(samples.detach().cpu() if isinstance(samples, torch.Tensor) else samples)
    return _channels_last(kind, array)


def _is_pillow(sample: Any) -> bool:
    return hasattr(sample, "convert") and hasattr(sample, "getbands")


def _is_single(sample: Any) -> bool:
    return _is_pillow(sample) or (isinstance(sample, np.ndarray | torch.Tensor) and sample.ndim in {2, 3})


def _one(kind: Pixels, sample: Any, where: str) -> Array:
    """One image of a list as [1, H, W, C]."""
    if _is_pillow(sample):
        return _of_pillow(kind, sample, where)
    array: Array = np.asarray(sample.detach().cpu() if isinstance(sample, torch.Tensor) else sample)
    found = _single(kind, array)
    if array.dtype != np.uint8 or found is None:
        raise RequestError(f"{where} is {array.dtype} {list(array.shape)}. Expected: {_EXPECTED}, {_forms(kind)}")
    return found


def _of_pillow(kind: Pixels, image: Image, where: str) -> Array:
    """The image as [1, H, W, C], turned by its EXIF orientation, with the channels that the model takes."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.size != (kind.width, kind.height):
        raise RequestError(
            f"{where} is {upright.width}×{upright.height} (width × height). Expected: {kind.width}×{kind.height}, as "
            f"those that the model was trained on; use image.resize(({kind.width}, {kind.height}))"
        )
    if upright.mode[0] in "IF":
        raise RequestError(f"{where} has {too_many_bits(upright.mode)}. Expected: 8-bit grey or colour")
    if kind.channels not in _MODES:
        raise RequestError(f"{where} is a Pillow image. Expected: an array, {_forms(kind)}")
    array: Array = np.asarray(upright.convert(_MODES[kind.channels]))
    return array.reshape(1, kind.height, kind.width, kind.channels)


def _channels_last(kind: Pixels, array: Array) -> Array:
    channels, height, width = kind.shape
    if array.ndim == 4 and array.shape[1:] != (height, width, channels) and array.shape[1:] == kind.shape:
        return array.transpose(0, 2, 3, 1)
    if channels == 1 and array.ndim == 3 and array.shape[1:] == (height, width):
        return array[..., None]
    found = _single(kind, array)
    return array if found is None else found


def _single(kind: Pixels, array: Array) -> Array | None:
    """One image as [1, H, W, C]; None: the array is not a single image of this kind."""
    channels, height, width = kind.shape
    channels_last = array.shape == (height, width, channels)
    channels_first = array.shape == (channels, height, width)
    if channels_last and channels_first and channels > 1:
        raise RequestError(
            f"the image is {list(array.shape)}: its channels may be its first or its last dimension. "
            f"Expected: [1, {height}, {width}, {channels}], the channels last"
        )
    if channels_last:
        return array[None]
    if channels_first:
        return array.transpose(1, 2, 0)[None]
    if channels == 1 and array.shape == (height, width):
        return array[None, ..., None]
    return None


def _forms(kind: Pixels) -> str:
    """The accepted shapes of one image, for messages."""
    channels, height, width = kind.shape
    flat = f" or [{height}, {width}]" if channels == 1 else ""
    return f"[{height}, {width}, {channels}], [{channels}, {height}, {width}]{flat}"
