"""Features in files that later runs and other processes find again.

A file's name is a checksum of everything that its features depend on: the body's tensors and structure, the samples,
how they become input, the precision and the versions (data/array_files.py).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.caches import CACHE, cache_root
from torso.data.array_files import ArrayFile, NewArray
from torso.data.clients import checksum
from torso.errors import RequestError, RunFailed
from torso.nets import Tensors

_FORMAT = 1
_DATA = "features.npy"


def cache_folder() -> Path:
    """Where features are kept."""
    return cache_root() / "features"


def digest_of(tensors: Iterable[Tensor], about: object = "") -> str:
    """A checksum of tensors' whole content, and of what is said about them."""
    return checksum(about, map(_array, tensors))


def _array(tensor: Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:  # NumPy has no such kind of number: bfloat16
        return plain.reshape(-1).view(torch.uint8).numpy()


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
        self.folder = cache_folder() / name
        self._file = ArrayFile(self.folder, _DATA, np.float32, shape)

    def read(self) -> tuple[Tensor | None, str]:
        """The features, mapped into memory, and what is wrong with the file; neither where there is none."""
        found, wrong = self._file.read(mapped=True)
        return (None if found is None else torch.from_numpy(found)), wrong

    def new(self) -> NewFile:
        try:
            return NewFile(self._file.new())
        except OSError as error:
            raise _unwritable(self.folder.parent, error) from None


class NewFile:
    """A file in the making: `features` is mapped into memory, and `keep` puts the file under its name."""

    def __init__(self, new: NewArray) -> None:
        self._new, self.features = new, torch.from_numpy(new.array)

    def keep(self) -> None:
        try:
            self._new.keep()
        except OSError as error:
            raise _unwritable(self._new.folder, error) from None

    def drop(self) -> None:
        self._new.drop()


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
