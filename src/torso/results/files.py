"""Writing files atomically, readable errors for failed writes, and checksums of files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from torso.errors import CannotWrite


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file atomically: after a crash there is the whole new file or the old one.

    `write` writes to the path that it is given. CannotWrite is raised if the disk is full or read-only."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except (OSError, SafetensorError):
            with suppress(OSError):
                temporary.unlink(missing_ok=True)  # frees the space on a full disk
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the errors of a full disk or a read-only folder into a CannotWrite with one sentence."""
    try:
        yield
    except CannotWrite:
        raise
    except (OSError, SafetensorError) as error:
        known = error.strerror if isinstance(error, OSError) else None
        reason = known or re.sub(r"^.*I/O error: | \(os error \d+\)$", "", str(error))
        raise CannotWrite(f"{str(path)!r} cannot be written: {reason}") from None


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk
