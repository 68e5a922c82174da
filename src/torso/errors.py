"""Errors that the user is meant to read. A message names the key or file, what was found, and what is accepted."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class TorsoError(Exception):
    """Base of all errors that the user is meant to read; `exit_status` is what the command line returns."""

    exit_status = 1


class RequestError(TorsoError):
    """The request was wrong (a key, a value, a file). Nothing has been written."""

    exit_status = 2


class RunFailed(TorsoError):
    """The request was right, but the run failed: its loss became non-finite, for example."""


class DeviceFull(TorsoError):
    """A single client does not fit into the memory that the device has left. The run ends with a checkpoint and can be
    resumed with more memory."""


class InUse(TorsoError):
    """Another process works in the same folder. The same request is accepted once that process has ended."""

    exit_status = 2


class CannotWrite(TorsoError, OSError):
    """A file cannot be written: the disk is full, or the folder is read-only. An earlier version of it is kept."""


class MissingData(RequestError):
    """The data are not where the request says."""


class ChangedData(RequestError):
    """The data differ from those that the run began with."""


class NoWorkerLeft(TorsoError):
    """No worker is left to run clients on. The run ends with a checkpoint and can be resumed elsewhere."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known name is similar to this one, otherwise a full stop."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


@contextmanager
def running_user_code(what: str, expected: str) -> Iterator[None]:
    """Run the user's code (a source, a partition, a network) and turn any exception of it into a RequestError.

    The error says in one sentence what was raised, in which file and line. TorsoError and MemoryError pass through."""
    try:
        yield
    except (TorsoError, MemoryError):
        raise
    except Exception as error:  # user code may raise anything; Python shows the cause, the command line only this line
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        raised = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise RequestError(f"{what} fails: {raised} ({where}). Expected: {expected}") from error
