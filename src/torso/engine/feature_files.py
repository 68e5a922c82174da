"""Features in files that later runs and other processes find again.

A file's name is a checksum of everything that its features depend on: the body's tensors and structure, the samples,
how they become input, the precision and the versions. So a file of other features is never met by its name. A file is
written under another name and renamed when it is whole, and its content is checked against a checksum when it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torso.data.clients import checksum
from torso.errors import RequestError, RunFailed
from torso.nets import Tensors

CACHE = "TORSO_CACHE"
_FORMAT = 1
_DATA, _ABOUT = "features.npy", "about.json"


def cache_folder() -> Path:
    """Where features are kept: below $TORSO_CACHE, or the user's folder for caches."""
    asked = os.environ.get(CACHE)
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torso"
    return (Path(asked).expanduser() if asked else usual) / "features"


def digest_of(tensors: Iterable[Tensor], about: object = "") -> str:
    """A checksum of tensors' whole content, and of what is said about them."""
    return checksum(about, (tensor.detach().cpu().contiguous().numpy() for tensor in tensors))


def body_digest(body: Tensors) -> str:
    names = sorted(body)
    return digest_of((body[name] for name in names), names)


def file_key(**parts: object) -> str:
    """The name of a file whose features depend on these parts."""
    from torso import __version__

    versions = {"format": _FORMAT, "torso": __version__, "torch": torch.__version__}
    return checksum(json.dumps({**parts, **versions}, sort_keys=True, default=repr), ())


class FeatureFile:
    """The features [n, d] of one split in a file of this name."""

    def __init__(self, name: str, shape: tuple[int, int]) -> None:
        self.folder, self.shape = cache_folder() / name, shape

    def read(self) -> tuple[Tensor | None, str]:
        """The features, mapped into memory, and what is wrong with the file; neither where there is none."""
        if not self.folder.exists():
            return None, ""
        try:
            about = json.loads((self.folder / _ABOUT).read_text(encoding="utf-8"))
            found = np.load(self.folder / _DATA, mmap_mode="c", allow_pickle=False)
            if found.shape != self.shape or found.dtype != np.float32:
                return None, f"it holds {found.dtype} {list(found.shape)}, expected float32 {list(self.shape)}"
            if checksum("", [found]) != about["checksum"]:
                return None, "its content does not match its checksum"
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            return None, str(error).splitlines()[0] if str(error) else type(error).__name__
        return torch.from_numpy(found), ""

    def new(self) -> NewFile:
        return NewFile(self)


class NewFile:
    """A file in the making: `features` is mapped into memory, and `keep` puts the file under its name."""

    def __init__(self, file: FeatureFile) -> None:
        self.file = file
        try:
            file.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=".new-", dir=file.folder.parent))
            self.array = np.lib.format.open_memmap(self.folder / _DATA, mode="w+", dtype=np.float32, shape=file.shape)
            _reserve(self.folder / _DATA)
        except OSError as error:
            raise _unwritable(file.folder.parent, error) from None
        self.features = torch.from_numpy(self.array)

    def keep(self) -> None:
        try:
            self.array.flush()
            about = {"checksum": checksum("", [self.array]), "shape": list(self.file.shape)}
            (self.folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
            shutil.rmtree(self.file.folder, ignore_errors=True)  # a damaged one
            self.folder.rename(self.file.folder)
        except OSError as error:
            if self.file.read()[0] is None:  # otherwise another process has just made the same file
                raise _unwritable(self.folder, error) from None
            self.drop()

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _reserve(path: Path) -> None:
    """Take the whole room of a file now: a full disk would otherwise end the process when memory is written back."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def check_cache() -> None:
    """Refuse a cache folder that cannot be written, before a run begins."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(
            f"run.features = 'disk': {str(folder)!r} cannot be written: {error.strerror or error}. Set {CACHE} to "
            "another folder, or choose auto, device or off"
        ) from None


def _unwritable(folder: Path, error: OSError) -> RunFailed:
    reason = error.strerror or str(error)
    return RunFailed(
        f"features cannot be written to {folder}: {reason}. Set {CACHE} to another folder, or run.features to 'device' "
        "or 'off'"
    )
