"""Errors that a user is meant to read. A message names the key or file, what was found, and what would do."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class TorsoError(Exception):
    """Base of every error that a user is meant to read; `exit_status` is what the command line returns."""

    exit_status = 1


class RequestError(TorsoError):
    """The request was wrong (a key, a value, a file): nothing has been written."""

    exit_status = 2


class RunFailed(TorsoError):
    """The request was fine, the run was not (a non-finite loss, say)."""


class InUse(TorsoError):
    """Another process runs in the same folder: the request was fine, and will be again when that one has ended."""

    exit_status = 2


class CannotWrite(TorsoError, OSError):
    """A file cannot be written: the disk is full, or the folder is read-only. What was there before is still there."""


class MissingData(RequestError):
    """The data are not where the request says."""


class ChangedData(RequestError):
    """The data are not those that the run began with."""


class PlaceLost(TorsoError):
    """Nothing is left for clients to run on: the run ends with a checkpoint, and can be resumed elsewhere."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when something close is known, else a full stop."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


@contextmanager
def from_outside(what: str, expected: str) -> Iterator[None]:
    """Somebody's own source, partition or network: whatever it raises is said in one sentence, with where."""
    try:
        yield
    except (TorsoError, MemoryError):
        raise
    except Exception as error:  # nobody knows what it may raise; Python shows the cause, the command line this line
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise RequestError(f"{what} fails: {said} ({where}). Expected: {expected}") from error
