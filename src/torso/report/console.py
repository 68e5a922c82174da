"""Lines beside the result, on the error stream."""

from __future__ import annotations

from rich.console import Console


def note(text: str) -> None:
    Console(stderr=True).print(f"note: {text}", soft_wrap=True, highlight=False, markup=False)
