"""An array in a file that later runs and other processes find again.

The name of a file is a checksum of everything that the array depends on, so a file of something else is never met by
its name. A file is written under another name and renamed when it is whole, and its content is checked against a
checksum when it is read.
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
_NEW = ".new-"  # so begin folders in the making
_STALE_S = 24 * 3600.0  # one that is older was left behind by a process that ended


class ArrayFile:
    """An array of this dtype and shape, as a folder of two files: the array, and what is known of it."""

    def __init__(self, folder: Path, data: str, dtype: Any, shape: tuple[int, ...]) -> None:
        self.folder, self.data, self.dtype, self.shape = folder, data, np.dtype(dtype), shape

    def read(self, mapped: bool = False) -> tuple[NDArray[Any] | None, str]:
        """The array, mapped into memory if asked for, and what is wrong with the file; neither where there is none."""
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
        """Raises OSError where it cannot be written."""
        return NewArray(self)


class NewArray:
    """A file in the making: `array` is mapped into memory, and `keep` puts the file under its name."""

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
        """Raises OSError where it cannot be, and no other process has just made the same file."""
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
        shutil.rmtree(self.folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what ended processes have left behind."""
    for each in folder.glob(f"{_NEW}*"):
        with suppress(OSError):  # another process was quicker
            if time.time() - each.stat().st_mtime > _STALE_S:
                shutil.rmtree(each, ignore_errors=True)


def _reserve(path: Path) -> None:
    """Take the whole room of a file now: a full disk would otherwise end the process when memory is written back."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
