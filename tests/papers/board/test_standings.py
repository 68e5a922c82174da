"""Places, differences and the ranking of the search, from rows that are made up here."""

from __future__ import annotations

import math

import pytest

from torso.papers.board.search import entered, ranked
from torso.papers.board.standings import (
    apart,
    best_known,
    in_setting,
    overall,
    places,
    spoken_difference,
)
from torso.papers.board.trials import best_of

from ..rows import DIR, ROWS, S2, TRIED, row, tried


def test_places_go_by_the_mean_and_what_diverged_has_none() -> None:
    assert places(ROWS, "personal") == {"n": 1, "fedbabu": 2, "fedavg": 3}
    assert places([row("a", 5.0), row("b", 5.0), row("d", 1.0)], "personal") == {"a": 1.5, "b": 1.5, "d": 3}
    assert [found["method"] for found in in_setting(ROWS, S2)] == ["n", "fedbabu", "fedavg", "fedper"]


def test_differences_are_to_the_best_known_method_and_paired_by_seed() -> None:
    best = best_known(ROWS, "personal")
    assert best is ROWS[1]
    mean, error = apart(ROWS[3], ROWS[1], "personal")  # 3, 3, 6: sd √3
    assert (mean, error) == (pytest.approx(4.0), pytest.approx(1.0))
    assert spoken_difference(ROWS[3], best, "personal") == "+4.0 (s.e. 1.0)"
    assert spoken_difference(ROWS[0], best, "personal") == "−0.5 (s.e. 0.3)"
    assert spoken_difference(ROWS[2], best, "personal") == "–"
    once = apart(row("a", 3.0), row("b", 1.0), "personal")
    assert once[0] == 2.0
    assert math.isnan(once[1])


def test_the_mean_place_is_of_those_that_have_one_everywhere() -> None:
    other = {"fedavg": 90.0, "fedbabu": 80.0, "fedper": 85.0}
    rows = [*ROWS, *(row(name, value, setting=DIR) for name, value in other.items())]
    found = [(one["method"], one["personal"]) for one in overall(rows, [S2, DIR])]
    assert found == [("fedavg", 2.0), ("fedbabu", 2.5)]
    assert overall([], []) == []


def test_the_search_ranks_by_the_mean_over_settings_of_the_best_sums() -> None:
    order = ranked(TRIED, [S2, DIR])
    assert [(one["method"], one["score"]) for one in order] == [("old", 100), ("steady", 95), ("uneven", 90)]
    assert entered(order, 1) == [{"name": "steady", "sets": ["method.name=fedprox"]}]
    assert [one["name"] for one in entered(order, 3)] == ["steady", "uneven"]
    assert best_of(TRIED[0]["tried"])["train.lr"] == 0.1
    assert best_of(tried("x", S2, 7.0, 7.0)["tried"])["train.lr"] == 0.03  # equals: the first of the grid
