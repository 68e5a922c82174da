"""Notes to the user, on the error stream, so that the output stream holds only the result."""

from __future__ import annotations

from rich.console import Console


def note(text: str) -> None:
    Console(stderr=True).print(f"note: {text}", soft_wrap=True, highlight=False, markup=False)
