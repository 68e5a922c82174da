"""JSON and TOML from files, flags and networks: whatever is wrong with them is one ValueError with a clear sentence."""

from __future__ import annotations

import json
import tomllib
from typing import Any

_DIGITS = 30  # of a whole number: more than any count of ours has
_DEPTH = 100  # of tables in tables
_BOM = "\ufeff"  # some editors begin a file with it


def parse_json(text: str | bytes) -> Any:
    """What JSON says. Nesting without end, numbers beyond all use and halves of characters are refused."""
    found = text.decode() if isinstance(text, bytes) else text
    try:
        tree = json.loads(found.removeprefix(_BOM), parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in found.lower():
        _check_characters(json.dumps(tree, ensure_ascii=False))
    return tree


def parse_record(text: str | bytes, most: int = 100_000) -> Any:
    """What JSON of another machine says. No record of ours has so many named entries as this refuses."""
    tree = parse_json(text)
    found, left = 0, [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            found += len(node)
            left += node.values()
        elif isinstance(node, list):
            left += node
        if found > most:
            raise ValueError(f"it has more than {most} named entries")
    return tree


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML under the same rules."""
    try:
        tree = tomllib.loads(text.removeprefix(_BOM))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_tree(tree)
    return tree


def is_text(text: str) -> bool:
    """Whether it can be written to a file: what a shell passes on need not be characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _check_characters(text: str) -> None:
    if not is_text(text):
        raise ValueError("it holds half of a character (a lone surrogate)")


def _check_tree(tree: Any) -> None:
    """No recursion of our own: a tree that was read may be deeper than Python's stack (a dotted key has no limit)."""
    left = [(tree, 0)]
    while left:
        node, depth = left.pop()
        if depth > _DEPTH:
            raise ValueError("it is nested too deeply")
        if isinstance(node, dict):
            left += [(each, depth + 1) for each in node.values()]
        elif isinstance(node, list):
            left += [(each, depth + 1) for each in node]
        elif isinstance(node, int) and abs(node) >= 10**_DIGITS:
            raise ValueError(f"it holds a number of more than {_DIGITS} digits")
