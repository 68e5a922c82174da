"""A word while nothing else can be shown: PyTorch takes seconds to load. Imports nothing heavy itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def starting(quiet: bool = False, what: str = "loading PyTorch …") -> Iterator[None]:
    """A spinner on a terminal's error stream; silent elsewhere, and where all is loaded already."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal or "torch" in sys.modules:
        yield
        return
    with console.status(what):
        yield
