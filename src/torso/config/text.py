"""A config as text: TOML files, and `KEY=VALUE` of `--set`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from torso.errors import RequestError
from torso.reading import is_text, parse_toml


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(
            f"config {str(path)!r} does not exist. Give a TOML file, or leave it out for the defaults."
        ) from None
    except UnicodeDecodeError:
        raise RequestError(f"config {str(path)!r} cannot be read as TOML: it is not text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise RequestError(f"config {str(path)!r} cannot be read as TOML: {error}") from None


def assign_all(tree: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """Apply overrides in order, but `method.name` first: the other method keys change the preset that it names."""
    for assignment in sorted(sets, key=lambda text: text.partition("=")[0].strip() != "method.name"):
        assign(tree, assignment)
    return tree


def assign(tree: dict[str, Any], assignment: str) -> None:
    """Apply one `KEY=VALUE` to a nested tree; `method.drift.mu=1` after `method.drift=proximal` sets its option."""
    if not is_text(assignment):
        raise RequestError(f"--set {assignment!r} holds bytes that are no UTF-8 text.")
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) < 2:
        example = f"method.name={text}" if keys == ["method"] and equals and text else "train.lr=0.1"
        raise RequestError(f"--set {assignment!r} is not KEY=VALUE with a key like train.lr. Example: --set {example}")
    if keys[0] == "method" and keys[1] == "name":
        tree["method"] = {}  # a new preset starts from its own axes
    node = tree
    for level, name in enumerate(keys[:-1]):
        child = node.get(name, {})
        if isinstance(child, str):
            child = {"name": child}
        if not isinstance(child, dict):
            raise RequestError(
                f"--set {assignment!r}: {'.'.join(keys[: level + 1])} is a value, not a table with keys."
            )
        node[name] = child
        node = child
    node[keys[-1]] = parse_value(text)


def parse_value(text: str) -> Any:
    """The text as a TOML value if it parses as one (numbers, booleans, lists), otherwise the text itself."""
    value = _short_value(text) if len(text) < 100 else _value(text)
    return deepcopy(value) if isinstance(value, list | dict) else value


@lru_cache(maxsize=4096)
def _short_value(text: str) -> Any:
    """Cached, because a table of a paper sets the same few values in thousands of configs."""
    return _value(text)


def _value(text: str) -> Any:
    spellings = [text, text.lower()]  # True and .5 are not TOML, but their meaning is clear
    if re.fullmatch(r"\s*\.\d.*", text):
        spellings.append(f"0{text.strip()}")
    for spelling in spellings:
        try:
            return parse_toml(f"value = {spelling}")["value"]
        except ValueError:
            continue
    return text
