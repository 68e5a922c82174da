"""Locks on files: one process at a time holds a file, and a process that dies releases it.

If the system cannot lock files (Windows, some shared disks), every process gets the file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from torso.errors import InUse

_PATIENCE = 5.0  # seconds: a process that was killed a moment ago may take some time to release its lock

held_files: set[IO[str]] = set()
if hasattr(os, "register_at_fork"):  # a forked child would keep the lock after this process has ended
    os.register_at_fork(after_in_child=lambda: [file.close() for file in held_files])


@contextmanager
def held(file: IO[str], busy: str) -> Iterator[None]:
    """Hold the lock of a file inside this context. Raises InUse with the message `busy` if another holder, in this
    process or elsewhere, does not release it in time."""
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
    """Try to lock the file until it is closed. True: locked; False: another holder has it; None: this system cannot
    lock it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _unlock(file: IO[str]) -> None:
    """Release the lock explicitly: a child that a library forked, unseen by Python, may still have the file open."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
