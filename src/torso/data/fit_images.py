"""Images as a body wants them: their size, their channels, and the constants that its weights expect.

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
_AT_ONCE = 64  # images of a thread's piece of work
_GREY, _COLOUR, _WITH_ALPHA = 1, 3, 4


def reads_files(source: str) -> bool:
    """Whether a source reads image files, which it resizes as it does."""
    return source in ("folder", "parquet") or source.startswith("hf/")


def sized(options: DataConfig, wants: Wants) -> DataConfig:
    """The options with which image files are read for a body: at its size, unless `data.size` is set."""
    wanted = wants.size and not options.size and reads_files(options.source)
    return options.model_copy(update={"size": wants.size}) if wanted else options


def of_size(dataset: Dataset, side: int) -> Dataset:
    """The images of a data set as `data.size` says."""
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
    """The data set with images of the size, channels and constants that a body wants, and a sentence that says so.

    `data.size` is over by now: whatever reads images goes by it."""
    before = dataset.kind
    assert isinstance(before, Pixels)
    after = fitted_kind(before, options, wants)
    on_reading = bool(wants.size and not options.size and reads_files(options.source))
    train, test = (_part(part, after, wants) for part in (dataset.train, dataset.test))
    augment = _augment(dataset, before, options, wants)
    said = [sentence(before, after, wants, on_reading)]
    if augment != dataset.augment and options.augment == "auto":
        said.append(
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
        remarks=(*dataset.remarks, *filter(None, said)),
    )


def fitted_kind(kind: Pixels, options: DataConfig, wants: Wants) -> Pixels:
    """What images of a kind become: resized to `data.size` or what the body wants, with its channels and constants."""
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
    """Grey may become colour, and alpha may be dropped."""
    return before == after or (before, after) in ((_GREY, _COLOUR), (_WITH_ALPHA, _COLOUR))


def brings_constants(options: DataConfig, wants: Wants) -> bool:
    """Whether mean and std are those that the body's weights expect."""
    return bool(wants.mean) and options.normalize == "source"


def _widened(values: tuple[float, ...], before: int, after: int) -> tuple[float, ...]:
    """The constants of grey images for each of three channels; without that of alpha."""
    return values * after if before == _GREY else values[:after]


def as_kind(images: Bytes, kind: Pixels) -> Bytes:
    """Images [n, H, W, C] with the size and channels of a kind: without alpha, grey as three equal channels. Resizing
    does not keep the proportions and uses Pillow's bilinear filter, as reading image files does: the same bits on every
    machine."""
    images = images[..., : kind.channels]
    if images.shape[1:3] != (kind.height, kind.width):
        images = resized(images, kind.height, kind.width)
    if images.shape[3] < kind.channels:
        images = np.repeat(images, kind.channels, axis=3)
    return np.ascontiguousarray(images)


def resized(images: Bytes, height: int, width: int) -> Bytes:
    """Images of another size, a few at a time in each thread."""
    from PIL import Image

    made = np.empty((len(images), height, width, images.shape[3]), np.uint8)

    def fill(start: int) -> None:
        for place in range(start, min(start + _AT_ONCE, len(images))):
            for channels in _layers(images.shape[3]):
                one = np.ascontiguousarray(images[place, ..., channels])
                shrunk = Image.fromarray(one).resize((width, height), Image.Resampling.BILINEAR)
                made[place, ..., channels] = np.asarray(shrunk)

    in_threads(fill, range(0, len(images), _AT_ONCE))
    return made


def _layers(channels: int) -> list[slice | int]:
    """What Pillow takes at once: three channels, or one."""
    return [slice(0, _COLOUR)] if channels == _COLOUR else list(range(channels))


def _part(part: Labelled, kind: Pixels, wants: Wants) -> Images:
    _check_room(part, kind, wants)
    return Images(as_kind(part.samples, kind), part.labels, part.writers)


def _check_room(part: Labelled, kind: Pixels, wants: Wants) -> None:
    """Refuse before the machine runs out of memory, where it tells how much is free."""
    needed, free = len(part) * kind.bytes, _free_bytes()
    if part.samples.shape[1:3] != (kind.height, kind.width) and free is not None and needed > free:
        raise RequestError(
            f"{len(part)} images of {kind.height}×{kind.width}, as {wants.by} wants them, take {needed / 1e9:.1f} GB, "
            f"and {free / 1e9:.1f} GB of memory are free. Set data.size to less, such as {kind.height // 2}"
        )


def _free_bytes() -> int | None:
    """Memory that this machine has left; None: it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _augment(dataset: Dataset, kind: Pixels, options: DataConfig, wants: Wants) -> str:
    """Photographs of somebody's own are mirrored for a pre-trained body; other sources say themselves what is usual."""
    own = reads_files(options.source) and dataset.augment == "none" and kind.channels != _GREY
    return "flip" if own and (wants.mean or wants.usual) else dataset.augment


def sentence(before: Pixels, after: Pixels, wants: Wants, on_reading: bool = False) -> str:
    """What was done to the images; "": nothing."""
    done = []
    if on_reading or (before.height, before.width) != (after.height, after.width):
        bent = (
            "" if on_reading or before.height * after.width == before.width * after.height else " (not in proportion)"
        )
        done.append(f"resized to {after.height}×{after.width}{bent}")
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
