"""Fitting images to a body: their size, their channels, and the mean and std that its weights expect.

n images of H × W pixels with C channels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torso.data.image_files import in_threads
from torso.data.images import Dataset, Images, Labelled
from torso.data.inputs import Pixels
from torso.data.wants import Wants
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

Bytes = NDArray[np.uint8]
_AT_ONCE = 64  # images that a thread resizes at once
_GREY, _COLOUR, _WITH_ALPHA = 1, 3, 4  # numbers of channels


def reads_files(source: str) -> bool:
    """Whether a source decodes image files and resizes them while it reads."""
    return source in ("folder", "parquet") or source.startswith("hf/")


def sized(options: DataConfig, wants: Wants) -> DataConfig:
    """The options to read image files with: at the size that the body wants, unless `data.size` is set."""
    takes_wanted_size = wants.size and not options.size and reads_files(options.source)
    return options.model_copy(update={"size": wants.size}) if takes_wanted_size else options


def of_size(dataset: Dataset, side: int) -> Dataset:
    """The data set with images resized to side × side pixels (`data.size`)."""
    kind = dataset.kind
    if not isinstance(kind, Pixels):
        raise RequestError(f"data.size = {side} is for images, and the data are {kind.words}. Set it to 0")
    if (kind.height, kind.width) == (side, side):
        return dataset
    after = replace(kind, height=side, width=side)
    wants = Wants(by=f"data.size = {side}")
    train, test = (_part(part, after, wants) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, input=after)


def fitted_images(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """The data set with images of the size, channels and constants that the body wants, and a remark that says so.

    `data.size` has been applied before, when the images were read."""
    before = dataset.kind
    assert isinstance(before, Pixels)
    after = fitted_kind(before, options, wants)
    on_reading = bool(wants.size and not options.size and reads_files(options.source))
    train, test = (_part(part, after, wants) for part in (dataset.train, dataset.test))
    augment = _augment(dataset, before, options, wants)
    remarks = [sentence(before, after, wants, on_reading)]
    if augment != dataset.augment and options.augment == "auto":
        remarks.append(
            "data.augment = 'auto' mirrors half of the training images, as is usual with photographs. Where left and "
            "right matter, set data.augment = none"
        )
    return replace(
        dataset,
        train=train,
        test=test,
        input=after,
        mean=after.mean,
        std=after.std,
        augment=augment,
        remarks=(*dataset.remarks, *filter(None, remarks)),
    )


def fitted_kind(kind: Pixels, options: DataConfig, wants: Wants) -> Pixels:
    """The kind of the fitted images: the size of `data.size` or the body, the channels and constants of the body."""
    channels = wants.channels or kind.channels
    if not channels_can_become(kind.channels, channels):
        raise RequestError(
            f"{wants.by} takes images with {channels} channel{'' if channels == 1 else 's'}, and the data are "
            f"{kind.words}. Expected: {'1, 3 or 4' if channels == _COLOUR else channels}"
        )
    side = options.size or wants.size
    height, width = (side, side) if side else (kind.height, kind.width)
    mean, std = (_widened(each, kind.channels, channels) for each in (kind.mean, kind.std))
    if brings_constants(options, wants):
        mean, std = wants.mean, wants.std
    return Pixels(channels, height, width, mean, std)


def channels_can_become(before: int, after: int) -> bool:
    """Whether images can be converted between these numbers of channels: from grey to colour, or without alpha."""
    return before == after or (before, after) in ((_GREY, _COLOUR), (_WITH_ALPHA, _COLOUR))


def brings_constants(options: DataConfig, wants: Wants) -> bool:
    """Whether mean and std are those of the body's weights, not those of the source or the data."""
    return bool(wants.mean) and options.normalize == "source"


def _widened(values: tuple[float, ...], before: int, after: int) -> tuple[float, ...]:
    """Constants per channel for another number of channels: those of grey repeated, or without that of alpha."""
    return values * after if before == _GREY else values[:after]


def as_kind(images: Bytes, kind: Pixels) -> Bytes:
    """Images [n, H, W, C] converted to the size and channels of a kind: alpha is dropped, grey becomes three equal
    channels. Resizing does not keep proportions. It uses Pillow's bilinear filter, as reading image files does, and
    gives the same bits on every machine."""
    images = images[..., : kind.channels]
    if images.shape[1:3] != (kind.height, kind.width):
        images = resized(images, kind.height, kind.width)
    if images.shape[3] < kind.channels:
        images = np.repeat(images, kind.channels, axis=3)
    return np.ascontiguousarray(images)


def resized(images: Bytes, height: int, width: int) -> Bytes:
    """The images [n, H, W, C] resized, by several threads."""
    from PIL import Image

    made = np.empty((len(images), height, width, images.shape[3]), np.uint8)

    def fill(start: int) -> None:
        for place in range(start, min(start + _AT_ONCE, len(images))):
            for channels in _layers(images.shape[3]):
                pixels = np.ascontiguousarray(images[place, ..., channels])
                small = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
                made[place, ..., channels] = np.asarray(small)

    in_threads(fill, range(0, len(images), _AT_ONCE))
    return made


def _layers(channels: int) -> list[slice | int]:
    """The channels that Pillow takes at once: all three of a colour image, otherwise one by one."""
    return [slice(0, _COLOUR)] if channels == _COLOUR else list(range(channels))


def _part(part: Labelled, kind: Pixels, wants: Wants) -> Images:
    _check_memory(part, kind, wants)
    return Images(as_kind(part.samples, kind), part.labels, part.writers)


def _check_memory(part: Labelled, kind: Pixels, wants: Wants) -> None:
    """Refuse to resize images that would not fit into the free memory, if the system tells how much is free."""
    needed = len(part) * kind.bytes
    free = _free_bytes()
    resizes = part.samples.shape[1:3] != (kind.height, kind.width)
    if resizes and free is not None and needed > free:
        raise RequestError(
            f"{len(part)} images of {kind.height}×{kind.width}, as {wants.by} wants them, take {needed / 1e9:.1f} GB, "
            f"and {free / 1e9:.1f} GB of memory are free. Set data.size to less, such as {kind.height // 2}"
        )


def _free_bytes() -> int | None:
    """Free memory of this machine in bytes; None: the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _augment(dataset: Dataset, kind: Pixels, options: DataConfig, wants: Wants) -> str:
    """The usual augmentation: the user's own colour images are mirrored for a pre-trained body; other sources declare
    theirs."""
    own_photographs = reads_files(options.source) and dataset.augment == "none" and kind.channels != _GREY
    return "flip" if own_photographs and (wants.mean or wants.usual) else dataset.augment


def sentence(before: Pixels, after: Pixels, wants: Wants, on_reading: bool = False) -> str:
    """A remark on what was done to the images; "": nothing was done.

    `on_reading`: the images were resized when they were read, so their own sizes are not known here."""
    done = []
    if on_reading or (before.height, before.width) != (after.height, after.width):
        in_proportion = before.height * after.width == before.width * after.height
        distorted = "" if on_reading or in_proportion else " (not in proportion)"
        done.append(f"resized to {after.height}×{after.width}{distorted}")
    if before.channels == _GREY != after.channels:
        done.append("converted from grey to three equal channels")
    if before.channels == _WITH_ALPHA != after.channels:
        done.append("stripped of their alpha channel")
    if wants.mean and after.mean == wants.mean and after.std == wants.std:
        done.append("normalised")
    if not done:
        return ""
    listed = f"{', '.join(done[:-1])} and {done[-1]}" if len(done) > 1 else done[0]
    which = "images" if on_reading else before.words
    return f"{which} are {listed} as {wants.by} expects"
