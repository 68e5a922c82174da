"""Decoded images that the next process finds again: decoding is most of the time that a short run needs to start.

The name of a file is a checksum of the encoded images and of the decoder's versions: other images have another name.
The cache has a bounded size, and the files that were used least recently leave it. Where it cannot be written, images
are decoded every time.
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

FORMAT = 1
MOST_BYTES = 8 * 2**30  # of all files together
_LEAST_BYTES = 2**20  # an array below is decoded as quickly
_DATA = "pixels.npy"


def decoded(
    encoded: Iterable[NDArray[np.generic]],
    shape: tuple[int, ...],
    decode: Callable[[], NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    """What `decode` makes of the encoded images, uint8 of this shape: from the cache, or made and kept there."""
    size = int(np.prod(shape, dtype=np.int64))
    if not _LEAST_BYTES <= size <= MOST_BYTES // 2:
        return decode()
    name = checksum((FORMAT, _decoder(), shape), encoded)
    file = ArrayFile(_folder() / name, _DATA, np.uint8, shape)
    found, _ = file.read(mapped=True)  # processes of one machine share its memory
    if found is None:
        found = decode()
        _keep(file, found)
    _used(file.folder)
    return found


def _folder() -> Path:
    return cache_root() / "decoded"


def _decoder() -> tuple[str, str | None]:
    """Other versions may round otherwise."""
    import PIL
    from PIL import features

    return PIL.__version__, features.version("jpg")


def _keep(file: ArrayFile, array: NDArray[np.uint8]) -> None:
    """Write the file, if it can be written; a read-only folder or a full disk costs the cache alone."""
    with suppress(OSError):
        _make_room(file.folder.parent, array.nbytes)
        new = file.new()
        try:
            new.array[:] = array
            new.keep()
        except BaseException:
            new.drop()
            raise


def _used(folder: Path) -> None:
    with suppress(OSError):
        os.utime(folder)


def _make_room(folder: Path, size: int) -> None:
    """Remove what was used least recently until so many bytes fit."""
    if not folder.exists():
        return
    kept = []
    for each in folder.iterdir():
        if not each.name.startswith("."):
            kept.append((each.stat().st_mtime, each))
    total = size + sum(map(_bytes, (each for _, each in kept)))
    for _, each in sorted(kept):
        if total <= MOST_BYTES:
            return
        total -= _bytes(each)
        shutil.rmtree(each, ignore_errors=True)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
