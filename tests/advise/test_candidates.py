"""Who competes first is what the leaderboard suggests, also where the setting that is asked about is left out."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import fmean

from torso.advise.candidates import usual
from torso.advise.evidence import _ON_BOARD

BOARD = Path(__file__).parents[2] / "docs" / "leaderboard.json"


def by_setting() -> dict[str, dict[str, float]]:
    """Setting → method → personal accuracy, of methods that ended well."""
    found: dict[str, dict[str, float]] = {}
    for row in json.loads(BOARD.read_text("utf-8"))["board"]:
        if row["personal"] and row["status"] == "ok":
            found.setdefault(row["setting"], {})[row["method"]] = row["personal"]["mean"]
    return found


def test_the_first_candidates_come_from_the_other_settings() -> None:
    """Of all pairs of methods, that whose better one is nearest to the best, on average over the other settings, is one
    of the first three; and in the setting that was left out one of these is at most half a point behind."""
    first = [_ON_BOARD.get(one.name, one.name) for one in usual()[:3]]
    board = by_setting()
    methods = sorted(set.intersection(*(set(found) for found in board.values())))
    for left_out, here in board.items():
        others = [found for setting, found in board.items() if setting != left_out]

        def behind(pair: tuple[str, ...], settings: list[dict[str, float]] = others) -> float:
            return fmean(max(found.values()) - max(found[name] for name in pair) for found in settings)

        best = min(combinations(methods, 2), key=behind)
        assert set(best) <= set(first), left_out
        assert behind(tuple(first), [here]) <= 0.5
