"""Arrays in files that later runs and other processes can reuse.

The caller names a file by a checksum of everything that the array depends on, so a name never leads to another array. A
file is written under a temporary name and renamed when it is complete. Its content is checked against a checksum when
it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torso.data.clients import checksum

_ABOUT = "about.json"
_NEW = ".new-"  # prefix of folders that are not complete yet
_STALE_S = 24 * 3600.0  # seconds; an older incomplete folder was left behind by a process that ended


class ArrayFile:
    """An array of a given dtype and shape on disk: a folder with the array and `about.json` (checksum, shape)."""

    def __init__(self, folder: Path, data: str, dtype: Any, shape: tuple[int, ...]) -> None:
        self.folder = folder
        self.data = data  # name of the array's file in the folder
        self.dtype = np.dtype(dtype)
        self.shape = shape

    def read(self, mapped: bool = False) -> tuple[NDArray[Any] | None, str]:
        """(array, "") if the file is whole, (None, reason) if it is damaged, (None, "") if it does not exist.

        `mapped`: map the array into memory instead of reading it."""
        try:
            if not self.folder.exists():
                return None, ""
            about = json.loads((self.folder / _ABOUT).read_text(encoding="utf-8"))
            found = np.load(self.folder / self.data, mmap_mode="c" if mapped else None, allow_pickle=False)
            if found.shape != self.shape or found.dtype != self.dtype:
                wanted = f"{self.dtype} {list(self.shape)}"
                return None, f"it holds {found.dtype} {list(found.shape)}, expected {wanted}"
            if checksum("", [found]) != about["checksum"]:
                return None, "its content does not match its checksum"
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            return None, str(error).splitlines()[0] if str(error) else type(error).__name__
        return found, ""

    def new(self) -> NewArray:
        """A new array to fill. Raises OSError if the file cannot be written."""
        return NewArray(self)


class NewArray:
    """An array file that is being written. The caller fills `array` (mapped into memory), then calls `keep`."""

    def __init__(self, file: ArrayFile) -> None:
        self.file = file
        file.folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(file.folder.parent)
        self.folder = Path(tempfile.mkdtemp(prefix=_NEW, dir=file.folder.parent))
        try:
            self.array = np.lib.format.open_memmap(
                self.folder / file.data, mode="w+", dtype=file.dtype, shape=file.shape
            )
            _reserve(self.folder / file.data)
        except OSError:
            self.drop()
            raise

    def keep(self) -> None:
        """Put the file under its final name. Raises OSError if that fails, unless another process has just made the
        same file."""
        try:
            self.array.flush()
            about = {"checksum": checksum("", [self.array]), "shape": list(self.file.shape)}
            (self.folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
            shutil.rmtree(self.file.folder, ignore_errors=True)  # a damaged one
            self.folder.rename(self.file.folder)
        except OSError:
            if self.file.read(mapped=True)[0] is None:
                raise
            self.drop()

    def drop(self) -> None:
        """Remove the incomplete file."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove incomplete folders that ended processes have left behind."""
    for each in folder.glob(f"{_NEW}*"):
        with suppress(OSError):  # another process may remove it at the same time
            if time.time() - each.stat().st_mtime > _STALE_S:
                shutil.rmtree(each, ignore_errors=True)


def _reserve(path: Path) -> None:
    """Allocate all bytes of a file on disk now. On a full disk, writing the mapped memory back later would kill the
    process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
