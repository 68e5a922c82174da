"""history.jsonl: one line per round, each with its own checksum. This module does not import torch."""

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
CUT = "is cut short"  # the problem of a last line that a killed run left unfinished
_CHECKED = re.compile(r'^(\{.*), "check": "([0-9a-f]{8})"\}$')


class Line(NamedTuple):
    """One line of the file, checked."""

    number: int  # from 1
    round: dict[str, Any] | None  # None: the line is damaged
    wrong: str = ""  # what is wrong with it, in words


def line_of(round: Mapping[str, Any]) -> str:
    """A round as a line of JSON; the last key is the checksum of the rest."""
    plain = json.dumps({key: value for key, value in round.items() if key != CHECK})
    return f'{plain[:-1]}, "{CHECK}": "{_sum(plain)}"}}'


def read_lines(folder: Path, whole: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> list[Line]:
    """All lines of a run folder's history, checked. A killed run may have left its last line unfinished.

    `whole`: whether a round has everything that the caller needs."""
    path = folder / HISTORY
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    *texts, unfinished = text.split("\n")
    checked = any(_CHECKED.match(each) for each in texts)  # False: older versions wrote no checksums
    lines = [_line(number, each, checked, whole) for number, each in enumerate(texts, start=1)]
    if not unfinished:
        return lines
    last = _line(len(lines) + 1, unfinished, checked, whole)
    if last.round is None:
        last = last._replace(wrong=CUT)
    return [*lines, last]


def rounds_in(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [line.round for line in lines if line.round is not None]


def problems(lines: Sequence[Line]) -> list[str]:
    """The problems of a history: damaged lines; or, if all lines are whole, the first round that is out of place."""
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
    """Whether a round has the entries that a run needs to continue after it."""
    return isinstance(tree.get("seconds"), int | float) and isinstance(tree.get("analyses", {}), dict)


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
