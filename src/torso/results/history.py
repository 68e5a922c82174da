"""history.jsonl: a line per round, each with a checksum of itself. Nothing here loads torch."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torso.reading import parse_json

HISTORY = "history.jsonl"
CHECK = "check"
CUT = "is cut short"
_CHECKED = re.compile(r'^(\{.*), "check": "([0-9a-f]{8})"\}$')


class Line(NamedTuple):
    """One line as it stands there: the round that it tells of, or what is wrong with it."""

    number: int
    round: dict[str, Any] | None
    wrong: str = ""


def line_of(round: Mapping[str, Any]) -> str:
    """A round as a line, with its checksum in the last key."""
    plain = json.dumps({key: value for key, value in round.items() if key != CHECK})
    return f'{plain[:-1]}, "{CHECK}": "{_sum(plain)}"}}'


def read_lines(folder: Path, whole: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> list[Line]:
    """All lines of a run folder's history; a killed run may have left the last one half-written.

    `whole`: whether a round has all that the reader needs."""
    path = folder / HISTORY
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    *texts, half = text.split("\n")
    checked = any(_CHECKED.match(each) for each in texts)  # older versions wrote no checksums
    lines = [_line(number, each, checked, whole) for number, each in enumerate(texts, start=1)]
    if not half:
        return lines
    last = _line(len(lines) + 1, half, checked, whole)
    return [*lines, last if last.round is not None else last._replace(wrong=CUT)]


def rounds_in(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [line.round for line in lines if line.round is not None]


def problems(lines: Sequence[Line]) -> list[str]:
    """Lines that are no rounds, or were changed; a round that is missing where all lines are whole."""
    wrong = [f"line {line.number} {line.wrong}" for line in lines if line.wrong and line.wrong != CUT]
    if wrong:
        return wrong
    rounds = [found["round"] for found in rounds_in(lines)]
    for place, round in enumerate(rounds, start=1):
        if round != place:
            return [f"line {place} is of round {round}, not of round {place}: lines are missing or out of order"]
    return []


def _line(number: int, text: str, checked: bool, whole: Callable[[Mapping[str, Any]], bool]) -> Line:
    try:
        tree = parse_json(text)
    except ValueError:
        return Line(number, None, "is not a round")
    if not isinstance(tree, dict) or type(tree.get("round")) is not int or not whole(tree):
        return Line(number, None, "is not a round")
    found = _CHECKED.match(text)
    if found and _sum(found[1] + "}") != found[2]:
        return Line(number, None, "was changed: its checksum does not match")
    if checked and not found:
        return Line(number, None, "was changed: it has no checksum, and others have")
    return Line(number, {key: value for key, value in tree.items() if key != CHECK})


def can_go_on(tree: Mapping[str, Any]) -> bool:
    """Whether a round has what a run needs that goes on after it."""
    return isinstance(tree.get("seconds"), int | float) and isinstance(tree.get("analyses", {}), dict)


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
