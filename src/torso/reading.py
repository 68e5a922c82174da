"""Parsers of JSON and TOML from files, flags and other machines. Every fault is a ValueError with a clear sentence."""

from __future__ import annotations

import json
import tomllib
from typing import Any

_DIGITS = 30  # most digits of a whole number; every count in Torso has fewer
_DEPTH = 100  # most levels of nested tables
_BOM = "\ufeff"  # some editors begin a file with it


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Refused: too deep nesting, whole numbers of more than 30 digits, and lone surrogates."""
    decoded = text.decode() if isinstance(text, bytes) else text
    try:
        tree = json.loads(decoded.removeprefix(_BOM), parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in decoded.lower():  # the escape sequence of a surrogate
        _check_characters(json.dumps(tree, ensure_ascii=False))
    return tree


def parse_record(text: str | bytes, most: int = 100_000) -> Any:
    """Parse JSON of another machine. More than `most` named entries are refused: no record of Torso has that many."""
    tree = parse_json(text)
    entries = 0
    unvisited = [tree]
    while unvisited:
        node = unvisited.pop()
        if isinstance(node, dict):
            entries += len(node)
            unvisited += node.values()
        elif isinstance(node, list):
            unvisited += node
        if entries > most:
            raise ValueError(f"it has more than {most} named entries")
    return tree


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Refused: too deep nesting and whole numbers of more than 30 digits."""
    try:
        tree = tomllib.loads(text.removeprefix(_BOM))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_tree(tree)
    return tree


def is_text(text: str) -> bool:
    """Whether a string can be encoded as UTF-8. A shell may pass on bytes that are no characters."""
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
    """Refuse a tree that is too deep, or holds too large numbers.

    It does not recurse: the tree may be deeper than Python's stack, because TOML's dotted keys have no limit."""
    unvisited = [(tree, 0)]
    while unvisited:
        node, depth = unvisited.pop()
        if depth > _DEPTH:
            raise ValueError("it is nested too deeply")
        if isinstance(node, dict):
            unvisited += [(each, depth + 1) for each in node.values()]
        elif isinstance(node, list):
            unvisited += [(each, depth + 1) for each in node]
        elif isinstance(node, int) and abs(node) >= 10**_DIGITS:
            raise ValueError(f"it holds a number of more than {_DIGITS} digits")
