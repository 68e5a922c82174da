"""Combinations of axes: which there are, which a preset has already, and which of those tried become entries.

Everything here goes by validation data; nothing of it has met a test image.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.methods import Method, methods
from torso.methods.method import AXES
from torso.methods.parse import axis_to_config
from torso.nets import build
from torso.papers.board.definition import Arena, Board, Entry, presets
from torso.runs.stages import stages

FILE = "found.json"


@dataclass(frozen=True)
class Combination:
    """A point of the search space; `known_as`: the preset with the same axes, or nothing; `refused`: why it cannot
    be."""

    entry: Entry
    axes: Mapping[str, str]
    known_as: str = ""
    refused: str = ""


def combinations(arena: Arena) -> list[Combination]:
    """All of the space. One that is an entry of the board goes by its name, so that its runs are the board's."""
    there = {_method(entry.sets): entry for entry in presets(arena.board)}
    found = []
    for axes, sets in _products(arena.board):
        entry = Entry("-".join(axes.values()), ("method.name=custom", *sets), new=True)
        try:
            config = arena.config(arena.board.search.settings[0], entry, {})
            stages(config, build(config.model.body, 10, (3, 32, 32), config.method.head, seed=0))
        except RequestError as error:
            found.append(Combination(entry, axes, refused=str(error)))
            continue
        same = there.get(bare(config.method))
        found.append(Combination(same or entry, axes, same.name if same else known_as(config.method)))
    return found


def _products(board: Board) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    for space in board.search.spaces:
        for choices in itertools.product(*(choices.items() for choices in space.axes.values())):
            axes = dict(zip(space.axes, (name for name, _ in choices), strict=True))
            yield axes, (*space.common, *(text for _, sets in choices for text in sets))


def _method(sets: Sequence[str]) -> Method:
    return bare(Config.load(None, sets).method)


def bare(method: Method) -> Method:
    """The method without what it is called."""
    return method.but(name="custom", about="", paper="")


def known_as(method: Method) -> str:
    """The preset that makes the same choice on every axis, whatever their numbers (μ, hidden units, divisor), and
    however the client's own model is made: to call something new, more than that has to differ."""
    wanted = _choices(method)
    return next((name for name, preset in methods.items() if _choices(preset) == wanted), "")


def _choices(method: Method) -> str:
    """The names of its choices, and which head a dual one makes: that is an axis of its own."""
    names: dict[str, Any] = {
        axis: axis_to_config(registry, getattr(method, axis))["name"]
        for axis, registry in AXES.items()
        if axis != "personal"
    }
    names["dual"] = getattr(method.head, "personal", "")
    phases = [(phase.part, phase.epochs) for phase in method.train]
    return json.dumps([names, phases, method.share.part, method.share.rest, method.server_data, method.meta_data])


def score(validation: Mapping[str, float] | None) -> float:
    """Generic plus personalised accuracy on validation data; a run that diverged has none, and counts as 0."""
    return sum(validation.values()) if validation else 0.0


def best_of(tried: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first of the grid with the largest sum."""
    return max(tried, key=lambda one: score(one["validation"]))


def ranked(rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[dict[str, Any]]:
    """Combinations that were tried in every setting, best first, by the mean over settings of their best sums."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["tried"] and not row["unfinished"]:
            by_name.setdefault(str(row["method"]), {})[str(row["setting"])] = row
    whole = [found for found in by_name.values() if set(found) >= set(settings)]
    summed = [
        {
            "method": first["method"],
            "axes": first["axes"],
            "known_as": first["known_as"],
            "sets": first["sets"],
            "score": round(fmean(score(best_of(found[s]["tried"])["validation"]) for s in settings), 4),
        }
        for found in whole
        if (first := found[settings[0]])
    ]
    return sorted(summed, key=lambda row: -float(row["score"]))


def entered(order: Sequence[Mapping[str, Any]], best: int) -> list[dict[str, Any]]:
    """The best of those that no preset has."""
    new = [row for row in order if not row["known_as"]]
    return [{"name": row["method"], "sets": list(row["sets"])} for row in new[:best]]


def score_of(found: Mapping[str, Any], entry: Entry) -> float | None:
    """What the search has reached with this method, whatever it was called there."""
    wanted = _method(entry.sets)
    return next((float(row["score"]) for row in found.get("ranked", ()) if _method(row["sets"]) == wanted), None)


def read_found(folder: Path) -> dict[str, Any]:
    """What an earlier `--search` has left: {settings, tried, ranked, entered, refused, complete}, or nothing."""
    path = folder / FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        [Entry(row["name"], tuple(row["sets"])) for row in found.get("entered", ())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"{str(path)!r} is not what `torso leaderboard --search` writes: {error}. Delete it and search again."
        ) from None
    return found


def entries_of(found: Mapping[str, Any]) -> list[Entry]:
    return [Entry(row["name"], tuple(row["sets"]), new=True) for row in found.get("entered", ())]
