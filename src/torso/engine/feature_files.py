"""Files with computed features, which later runs and other processes find again.

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
    """The folder of all feature files."""
    return cache_root() / "features"


def digest_of(tensors: Iterable[Tensor], about: object = "") -> str:
    """A checksum of the whole content of some tensors, and of a description (`about`)."""
    return checksum(about, map(_array, tensors))


def _array(tensor: Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:  # NumPy does not know bfloat16
        return plain.reshape(-1).view(torch.uint8).numpy()


def body_digest(body: Tensors) -> str:
    """A checksum of a body's tensors and their names."""
    names = sorted(body)
    return digest_of((body[name] for name in names), names)


def file_key(**parts: object) -> str:
    """The name of the file for features that depend on these parts and on the versions of torso and torch."""
    from torso import __version__

    versions = {"format": _FORMAT, "torso": __version__, "torch": torch.__version__}
    return checksum(json.dumps({**parts, **versions}, sort_keys=True, default=repr), ())


class FeatureFile:
    """The file `name` with the features [n, d] of one split."""

    def __init__(self, name: str, shape: tuple[int, int]) -> None:
        self.folder = cache_folder() / name
        self._file = ArrayFile(self.folder, _DATA, np.float32, shape)

    def read(self) -> tuple[Tensor | None, str]:
        """The features, memory-mapped, and what is wrong with the file. No file: (None, "")."""
        found, wrong = self._file.read(mapped=True)
        features = None if found is None else torch.from_numpy(found)
        return features, wrong

    def new(self) -> NewFile:
        """Begin to write the file."""
        try:
            return NewFile(self._file.new())
        except OSError as error:
            raise _unwritable(self.folder.parent, error) from None


class NewFile:
    """A feature file that is being written: fill `features` (memory-mapped), then call `keep`."""

    def __init__(self, new: NewArray) -> None:
        self._new = new
        self.features = torch.from_numpy(new.array)

    def keep(self) -> None:
        """Give the file its final name, so that others find it."""
        try:
            self._new.keep()
        except OSError as error:
            raise _unwritable(self._new.folder, error) from None

    def drop(self) -> None:
        """Delete the unfinished file."""
        self._new.drop()


def check_cache() -> None:
    """Raise RequestError if the cache folder cannot be written. Called before a run begins."""
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
