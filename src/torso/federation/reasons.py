"""Why something failed, as another machine is told: in words that are fit for its terminal, without what is private."""

from __future__ import annotations

import traceback
from pathlib import Path

from torso.errors import TorsoError

_LONGEST = 2000


def printable(text: str) -> str:
    """Words from another machine: one line without control characters, and not a book."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST]).split())


def reason_of(error: Exception) -> str:
    """What may leave this machine. Texts of errors that are not Torso's may hold anything: of those, kind and place."""
    foreign = error.__cause__ if isinstance(error, TorsoError) else error
    if foreign is None:
        return printable(str(error))
    steps = traceback.extract_tb(foreign.__traceback__)
    where = f" ({Path(steps[-1].filename).name}, line {steps[-1].lineno})" if steps else ""
    return f"it failed with {type(foreign).__name__}{where}"
