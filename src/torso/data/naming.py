"""The natural order of clients' names."""

from __future__ import annotations

import re
from collections.abc import Iterable


def in_natural_order(names: Iterable[str]) -> list[str]:
    """The names in natural order: client-2 before client-10."""
    return sorted(names, key=lambda name: ([_piece(piece) for piece in re.findall(r"\d+|\D+", name)], name))


def _piece(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
