"""Makes error messages safe to send to another machine, and messages from other machines safe to print."""

from __future__ import annotations

import traceback
from pathlib import Path

from torso.errors import TorsoError

_LONGEST = 2000


def printable(text: str) -> str:
    """Text from another machine, as one line of limited length without control characters."""
    characters = (character if character.isprintable() else " " for character in text[:_LONGEST])
    return " ".join("".join(characters).split())


def reason_of(error: Exception) -> str:
    """The description of an error that may be sent to another machine.

    The text of an error that is not Torso's may contain private data, so only its type and its place are sent."""
    foreign = error.__cause__ if isinstance(error, TorsoError) else error
    if foreign is None:
        return printable(str(error))
    steps = traceback.extract_tb(foreign.__traceback__)
    where = f" ({Path(steps[-1].filename).name}, line {steps[-1].lineno})" if steps else ""
    return f"it failed with {type(foreign).__name__}{where}"
