"""One folder for everything that Torso keeps between runs and can make again: $TORSO_CACHE, or the user's for caches.

Below it: `features` (engine/feature_files.py), `decoded` (data/decoded.py), `triton`, `inductor` (what they compile).
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "TORSO_CACHE"
_COMPILERS = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}  # their own variables


def cache_root() -> Path:
    """$TORSO_CACHE, else `torso` below $XDG_CACHE_HOME or ~/.cache."""
    if asked := os.environ.get(CACHE):
        return Path(asked).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torso"


def keep_compiled() -> None:
    """Have Triton and Inductor keep their compiled kernels below the same folder, in the processes that this one starts
    too. What the user has set stays; where the folder cannot be written, so does their own default."""
    root = cache_root()
    if all(name in os.environ for name in _COMPILERS) or not _writable(root):
        return
    for name, folder in _COMPILERS.items():
        os.environ.setdefault(name, str(root / folder))


def _writable(folder: Path) -> bool:
    """Whether files can be made there, also where it is yet to be made; nothing is made to find out."""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
