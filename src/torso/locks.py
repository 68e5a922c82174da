"""Files that one process at a time holds; a process that dies lets go of them.

Where files cannot be locked (on Windows, on some shared disks) nobody is kept out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from torso.errors import InUse

_PATIENCE = 5.0  # seconds: a process that was killed a moment ago may take some time to let go

held_files: set[IO[str]] = set()
if hasattr(os, "register_at_fork"):  # what a process forks would hold them after its end
    os.register_at_fork(after_in_child=lambda: [file.close() for file in held_files])


@contextmanager
def held(file: IO[str], busy: str) -> Iterator[None]:
    """Nobody else holds the file in the block, in this process or another; `busy` is said where somebody does."""
    until = time.monotonic() + _PATIENCE
    while lock(file) is False:
        if time.monotonic() > until:
            raise InUse(busy)
        time.sleep(0.1)
    held_files.add(file)
    try:
        yield
    finally:
        _unlock(file)
        held_files.discard(file)


def lock(file: IO[str]) -> bool | None:
    """Whether nobody else has the file locked, which it is until it is closed; None: it cannot be locked here."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _unlock(file: IO[str]) -> None:
    """For others, too, that have it open: what a library has forked behind Python's back."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
