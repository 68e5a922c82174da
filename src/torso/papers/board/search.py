"""The search: try all combinations on validation data, rank them, and choose the best new ones for the board.

Nothing in this file reads test data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torso.errors import RequestError
from torso.papers.board.combinations import Combination, method_of
from torso.papers.board.contestants import Contestant, in_turn
from torso.papers.board.definition import NAME
from torso.papers.board.rows import Row, key_of
from torso.papers.board.runs import BoardRuns
from torso.papers.board.trials import BoardMethod, best_of, score
from torso.runs.run import Stopped

FILE = "found.json"


def ranked(rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations that were tried in every setting, sorted by the mean over settings of their best score."""
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
    """The best combinations that no preset has: they enter the board."""
    new = [row for row in order if not row["known_as"]]
    return [{"name": row["method"], "sets": list(row["sets"])} for row in new[:best]]


def score_of(found: Mapping[str, Any], entry: BoardMethod) -> float | None:
    """The score of a method in the search, under whatever name it has there; None if the search has not tried it."""
    wanted = method_of(entry.sets)
    return next((float(row["score"]) for row in found.get("ranked", ()) if method_of(row["sets"]) == wanted), None)


def read_found(folder: Path) -> dict[str, Any]:
    """found.json of an earlier `--search`: {settings, tried, ranked, entered, refused, complete}; empty without one."""
    path = folder / FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        entered_methods(found)  # raises if the rows are not what a search writes
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"{str(path)!r} is not what `torso leaderboard --search` writes: {error}. Delete it and search again."
        ) from None
    return found


def entered_methods(found: Mapping[str, Any]) -> list[BoardMethod]:
    """The combinations that the search has entered into the board, as methods."""
    return [BoardMethod(row["name"], tuple(row["sets"]), new=True) for row in found.get("entered", ())]


def run_search(contestants: Sequence[Contestant], whole: Sequence[Combination], runs: BoardRuns) -> dict[str, Any]:
    """Try combinations on validation data, and write and return found.json: what was tried, and what enters the board.

    Nothing enters the board before every combination has been tried in every setting."""
    board = contestants[0].plan.board
    for one in contestants:
        runs.recall_tuning(one)
    wanted = {(setting, c.entry.name) for setting in board.search.settings for c in whole if not c.refused}
    before = {key_of(row): row for row in read_found(runs.folder).get("tried", ()) if key_of(row) in wanted}

    def found() -> dict[str, Any]:
        tried = {**before, **{key_of(row): row for one in contestants if (row := _tried(one, runs))["tried"]}}
        order = ranked(list(tried.values()), board.search.settings)
        left = len(wanted - {key for key, row in tried.items() if not row["unfinished"]})
        return {
            "settings": list(board.search.settings),
            "complete": not left,
            "left": left,
            "entered": [] if left else entered(order, board.search.best),
            "ranked": order,
            "tried": list(tried.values()),
            "refused": [{"method": c.entry.name, "why": c.refused} for c in whole if c.refused],
        }

    left = sum(len(runs.missing(one)) for one in contestants)
    runs.announce(f"{NAME}, search", left, left * int(contestants[0].tuning[0].config.train.rounds))
    try:
        for group in in_turn(contestants, runs.at_once):
            runs.tune(group, lambda: runs.write(FILE, found()))
    except Stopped:
        raise runs.stopped() from None
    runs.write(FILE, found())
    return found()


def _tried(one: Contestant, runs: BoardRuns) -> Row:
    """The row of found.json for a combination in a setting."""
    assert one.combination is not None
    return {
        "setting": one.setting,
        "method": one.entry.name,
        "axes": dict(one.combination.axes),
        "known_as": one.combination.known_as,
        "sets": list(one.entry.sets),
        "tried": runs.tried(one),
        "unfinished": len(runs.missing(one)),
    }
