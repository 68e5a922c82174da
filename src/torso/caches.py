"""The cache folder: everything that Torso keeps between runs and can make again.

Its subfolders: `features` (engine/feature_files.py), `decoded` (data/decoded.py), `triton` and `inductor` (kernels that
these compilers have made).
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "TORSO_CACHE"
_COMPILERS = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}  # environment variable → subfolder


def cache_root() -> Path:
    """$TORSO_CACHE if it is set, otherwise the folder `torso` in $XDG_CACHE_HOME or ~/.cache."""
    if asked := os.environ.get(CACHE):
        return Path(asked).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torso"


def keep_compiled() -> None:
    """Make Triton and Inductor store compiled kernels in the cache folder, in this process and those that it starts.

    A variable that the user has set stays as it is. If the cache folder cannot be written, the compilers keep their own
    default folders."""
    root = cache_root()
    if all(name in os.environ for name in _COMPILERS) or not _writable(root):
        return
    for name, folder in _COMPILERS.items():
        os.environ.setdefault(name, str(root / folder))


def _writable(folder: Path) -> bool:
    """Whether files can be written into the folder. A folder that does not exist yet is judged by its nearest existing
    parent; nothing is created."""
    nearest = next((each for each in (folder, *folder.absolute().parents) if each.exists()), None)
    return nearest is not None and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
