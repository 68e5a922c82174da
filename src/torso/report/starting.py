"""A spinner while PyTorch loads, which takes seconds. This module itself imports nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def starting(quiet: bool = False, what: str = "loading PyTorch …") -> Iterator[None]:
    """Shows a spinner on the error stream if it is a terminal and torch is not loaded yet."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal or "torch" in sys.modules:
        yield
        return
    with console.status(what):
        yield
