"""seal.json of a finished run: checksums of its result, history and analyses. This module does not import torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from torso.reading import parse_json

SEAL = "seal.json"
RESULT = "result.json"
_FORMAT = 1


def seal_text(files: Mapping[str, bytes]) -> str:
    """The content of seal.json for files with these names and contents."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return json.dumps({"format": _FORMAT, "sha256": sums}, indent=1) + "\n"


def damage(folder: Path, name: str) -> str:
    """What is wrong with a file of a finished run, in words; "" if its checksum matches.

    "" also if the run has no seal: it has not finished, or it was made by an older version."""
    if not ((folder / RESULT).exists() and (folder / SEAL).exists()):
        return ""
    try:
        expected = parse_json((folder / SEAL).read_bytes())["sha256"].get(name)
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest() if (folder / name).exists() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"cannot be checked, since {SEAL} is damaged ({type(error).__name__}: {error})"
    if expected == found:
        return ""
    if found is None:
        return f"is missing, and {SEAL} lists it"
    return f"was changed after the run had ended: its checksum is not the one in {SEAL}"


WAY_OUT = f"Take the file from a copy of the folder, or delete {SEAL} to read it as it is"
