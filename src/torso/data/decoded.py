"""A cache of decoded images on disk: decoding takes most of the time that a short run needs to start.

The name of a file is a checksum of the encoded images and of the decoder's versions, so other images have another name.
The size of the cache is bounded; the files that were used least recently are removed first. If the cache cannot be
written, images are decoded every time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torso.caches import cache_root
from torso.data.array_files import ArrayFile
from torso.data.clients import checksum

FORMAT = 1  # part of every file's name: a change of it makes all earlier files unused
MOST_BYTES = 8 * 2**30  # of all files together
_LEAST_BYTES = 2**20  # a smaller array is decoded as quickly as it is read
_DATA = "pixels.npy"


def decoded(
    encoded: Iterable[NDArray[np.generic]],
    shape: tuple[int, ...],
    decode: Callable[[], NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    """The decoded images, uint8 of this shape: read from the cache, or made by `decode` and stored there."""
    size = int(np.prod(shape, dtype=np.int64))
    if not _LEAST_BYTES <= size <= MOST_BYTES // 2:
        return decode()
    name = checksum((FORMAT, _decoder(), shape), encoded)
    file = ArrayFile(_folder() / name, _DATA, np.uint8, shape)
    images, _ = file.read(mapped=True)  # processes of one machine share the mapped memory
    if images is None:
        images = decode()
        _keep(file, images)
    _touch(file.folder)
    return images


def _folder() -> Path:
    return cache_root() / "decoded"


def _decoder() -> tuple[str, str | None]:
    """The versions of Pillow and its JPEG library; other versions may round differently."""
    import PIL
    from PIL import features

    return PIL.__version__, features.version("jpg")


def _keep(file: ArrayFile, array: NDArray[np.uint8]) -> None:
    """Write the file if possible. If the folder is read-only or the disk is full, the run goes on without the cache."""
    with suppress(OSError):
        _make_room(file.folder.parent, array.nbytes)
        new = file.new()
        try:
            new.array[:] = array
            new.keep()
        except BaseException:
            new.drop()
            raise


def _touch(folder: Path) -> None:
    """Mark the file as used now."""
    with suppress(OSError):
        os.utime(folder)


def _make_room(folder: Path, size: int) -> None:
    """Remove files, the least recently used ones first, until `size` more bytes fit into the cache."""
    if not folder.exists():
        return
    by_use = sorted((entry.stat().st_mtime, entry) for entry in folder.iterdir() if not entry.name.startswith("."))
    total = size + sum(_bytes(entry) for _, entry in by_use)
    for _, entry in by_use:
        if total <= MOST_BYTES:
            return
        total -= _bytes(entry)
        shutil.rmtree(entry, ignore_errors=True)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
