"""Places, differences and the page of the leaderboard, from rows that are made up here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from torso.papers.answers import over_seeds
from torso.papers.board_page import page, read, take
from torso.papers.search import best_of, entered, ranked
from torso.papers.standings import apart, best_known, in_setting, overall, places, spoken_difference

S2, DIR = "cifar10-s2", "cifar10-dir0.3"


def row(method: str, *personal: float, setting: str = S2, new: bool = False, status: str = "ok") -> dict[str, Any]:
    """Generic accuracy is half of the personal one, new clients have all of it."""
    value = over_seeds(dict(enumerate(personal))) if personal else None
    half = over_seeds({seed: v / 2 for seed, v in enumerate(personal)}) if personal else None
    return {
        **{"setting": setting, "method": method, "new": new, "sets": [], "status": status},
        **{"chosen": {"train.lr": 0.1}, "tried": [], "seeds": list(range(len(personal)))},
        **{"personal": value, "generic": half, "new_client": value, "new_client_before": half, "worst_tenth": half},
        **{"megabytes": value, "forward_passes": value, "data": "cifar10_jpeg.npz"},
        **{"machine": {"device": "a device", "precision": "bf16"}, "versions": {"torch": "2.13"}},
    }


ROWS = [
    row("a", 80.0, 82.0, 84.0),
    row("b", 81.0, 82.5, 84.0),
    row("c", 99.0, status="failed: non-finite loss"),
    row("n", 84.0, 85.5, 90.0, new=True),
]


def test_places_go_by_the_mean_and_what_diverged_has_none() -> None:
    assert places(ROWS, "personal") == {"n": 1, "b": 2, "a": 3}
    assert places([row("a", 5.0), row("b", 5.0), row("d", 1.0)], "personal") == {"a": 1.5, "b": 1.5, "d": 3}
    assert [found["method"] for found in in_setting(ROWS, S2)] == ["n", "b", "a", "c"]


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
    rows = [*ROWS, row("a", 90.0, setting=DIR), row("b", 80.0, setting=DIR), row("c", 85.0, setting=DIR)]
    assert [(one["method"], one["personal"]) for one in overall(rows, [S2, DIR])] == [("a", 2.0), ("b", 2.5)]
    assert overall([], []) == []


def _tried(method: str, setting: str, *sums: float | None, known_as: str = "", unfinished: int = 0) -> dict[str, Any]:
    points = [
        {"train.lr": lr, "validation": None if s is None else {"generic": s / 4, "personalized": 3 * s / 4}}
        for lr, s in zip((0.03, 0.1, 0.3), sums, strict=False)
    ]
    axes = {"head": method}
    return {
        **{"setting": setting, "method": method, "axes": axes, "known_as": known_as, "sets": [f"x={method}"]},
        **{"tried": points, "unfinished": unfinished},
    }


TRIED = [
    *(_tried("old", setting, 90.0, 100.0, None, known_as="fedavg") for setting in (S2, DIR)),
    *(_tried("steady", setting, 95.0, 80.0) for setting in (S2, DIR)),
    *(_tried("uneven", setting, None, best) for setting, best in ((S2, 120.0), (DIR, 60.0))),
    _tried("half", S2, 130.0),
    *(_tried("unfinished", setting, 140.0, unfinished=1) for setting in (S2, DIR)),
]


def test_the_search_ranks_by_the_mean_over_settings_of_the_best_sums() -> None:
    order = ranked(TRIED, [S2, DIR])
    assert [(one["method"], one["score"]) for one in order] == [("old", 100), ("steady", 95), ("uneven", 90)]
    assert entered(order, 1) == [{"name": "steady", "sets": ["x=steady"]}]
    assert [one["name"] for one in entered(order, 3)] == ["steady", "uneven"]
    assert best_of(TRIED[0]["tried"])["train.lr"] == 0.1
    assert best_of(_tried("x", S2, 7.0, 7.0)["tried"])["train.lr"] == 0.03  # equals: the first of the grid


def test_the_page_without_results_says_so() -> None:
    said = page({"board": [], "search": {}})
    assert "No results yet" in said
    assert "The search has not been run yet" in said
    assert "fedavg-meta" in said  # who is left out, and why


def test_the_page_has_the_tables_the_search_and_the_machine() -> None:
    order = ranked(TRIED, [S2, DIR])
    found = {"settings": [S2, DIR], "complete": True, "left": 0, "entered": entered(order, 1), "ranked": order}
    said = page({"board": ROWS, "search": {**found, "tried": TRIED, "refused": [{"method": "r", "why": "because"}]}})
    assert "No results yet" not in said
    assert "| cifar10-s2 | n 86.5 | n 43.2 |" in said
    assert "| cifar10-s2 | personal | b 82.5 | n 86.5 | +4.0 (s.e. 1.0), clear |" in said
    assert "| 1 | n (new) | 86.5 ± 3.1 | +4.0 (s.e. 1.0) | 43.2 ± 1.6 |" in said
    assert "| ✗ | c | 99.0 |" in said
    assert "Without a place in one of these settings: c." in said
    places = [line for line in said.splitlines() if "train.lr 0.1)" in line or "train.lr 0.03)" in line]
    assert [line.split(" | ")[1] for line in places] == ["old", "steady", "uneven", "half", "unfinished"]
    assert "new, entered" in places[1]
    assert "- refused: r: because" in said
    assert "Machine (precision): a device (bf16)." in said
    assert "Seeds: 1 or 3." in said
    assert "re-encoded as JPEG" in said


def test_the_page_names_who_cannot_be_told_from_the_best_and_who_has_a_neighbour_to_try() -> None:
    said = page({"board": ROWS[:3], "search": {}})  # a is behind b by 0.5, of which the standard error is 0.3
    assert "| cifar10-s2 | b 82.5 (+1) | b 41.2 (+1) |" in said
    assert "- train.lr 0.03 for a (1), b (1), c (1)" in said  # 0.1 was chosen, and nothing beside it tried
    assert "Not settled" in page({"board": ROWS, "search": {}})
    tried = [{"train.lr": rate, "validation": None} for rate in (0.03, 0.1, 0.3)]
    other = {**ROWS[3], "machine": {"device": "a small one", "precision": "fp32"}}
    said = page({"board": [{**one, "tried": tried} for one in (*ROWS[:3], other)], "search": {}})
    assert "Not tried yet" not in said
    assert "Not settled" not in said
    assert "- Of a small one: n in cifar10-s2." in said


def test_results_are_taken_in_and_kept_until_they_are_run_again(tmp_path: Path) -> None:
    out, folder = tmp_path / "out" / "leaderboard", tmp_path / "docs"
    out.mkdir(parents=True)
    folder.mkdir()
    assert not take(tmp_path / "out", folder)
    (out / "board.json").write_text(json.dumps([row("a", 80.0), row("b", 70.0)]))
    assert take(tmp_path / "out", folder)
    (out / "board.json").write_text(json.dumps([row("a", status="not run"), row("b", 75.0), row("d")]))
    assert take(tmp_path / "out", folder)
    found = {one["method"]: one["personal"] and one["personal"]["mean"] for one in read(folder)["board"]}
    assert found == {"a": 80.0, "b": 75.0, "d": None}
