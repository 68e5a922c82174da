"""The page of the leaderboard and its verdict, from rows that are made up here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from torso.papers.board.definition import load
from torso.papers.board.glance import sentence
from torso.papers.board.published import read
from torso.papers.board.search import ranked
from torso.papers.board.standings import (
    RANKED,
    TITLES,
    clearly,
)
from torso.papers.board.verdict import QUESTION, combinations_in_order, compare_found
from torso.papers.pages.leaderboard import collect, page
from torso.papers.pages.leaderboard_picture import picture, shown
from torso.report.statistics import student_quantile

from ..rows import DIR, ROWS, S2, TRIED, row

BOARD = load().model_copy(
    update={"entries": {"fedavg": (), "fedbabu": (), "fedper": ()}, "settings": {S2: load().settings[S2]}}
)


def _page(rows: Sequence[Mapping[str, Any]], search: Mapping[str, Any] | None = None, **changes: Any) -> str:
    return page({"board": rows, "search": search or {}}, BOARD.model_copy(update=changes))


def test_the_page_without_results_says_so() -> None:
    said = page({"board": [], "search": {}})
    assert "No results yet" in said
    assert "The search has not been run yet" in said
    assert "fedavg-meta" in said  # who is left out, and why
    intro = said.partition("## At a glance")[0]
    assert "**Equal**: rounds, participants" in intro
    assert "**Not equal**: how clients get their own models ([caveats](#caveats))" in intro


def _search(*entered: str) -> dict[str, Any]:
    order = ranked(TRIED, [S2, DIR])
    refused = [{"method": "r", "why": "because"}]
    names = [{"name": name, "sets": []} for name in entered]
    return {
        **{"settings": [S2, DIR], "complete": True, "left": 0},
        **{"entered": names, "ranked": order, "tried": TRIED, "refused": refused},
    }


def test_the_page_has_the_tables_the_search_and_the_machine() -> None:
    said = _page(ROWS, _search("steady"))
    assert "No results yet" not in said
    assert "| cifar10-s2 | n 86.5 (+1) | n 43.2 (+1) |" in said
    assert "| 1 | n (new) | 86.5 ± 3.1 | +4.0 (s.e. 1.0) | 43.2 ± 1.6 |" in said
    assert "| ✗ | fedper | 99.0 |" in said
    assert "Without a place in one of these settings: fedper." in said
    places = [line for line in said.splitlines() if "train.lr 0.1)" in line or "train.lr 0.03)" in line]
    assert [line.split(" | ")[1] for line in places] == ["old", "steady", "uneven", "half", "unfinished"]
    assert "new, entered" in places[1]
    assert "- refused: r: because" in said
    assert "Machine (precision): a device (bf16)." in said
    assert "Seeds: 1 or 3." in said
    assert "re-encoded as JPEG" in said


def test_a_setting_beside_the_others_has_a_table_and_no_part_in_the_places() -> None:
    frozen = "agnews-minilm-frozen"
    beside = [{**one, "setting": frozen} for one in (row("fedavg", 88.0), row("lp", 90.0))]
    said, alone = _page([*ROWS, *beside], _search("steady")), _page(ROWS, _search("steady"))
    assert f"## {frozen}" in said
    table = said.partition(f"## {frozen}")[2].partition("## ")[0]
    assert "| 1 | lp | 90.0 |" in table
    assert "Without a number here: fedbabu, fedper, fedncm." in table
    assert "Cannot compete here: fedbn" in table
    assert f"`{frozen}` (separate)" in said
    places = "## Over all settings"
    assert said.partition(places)[2].partition("## ")[0] == alone.partition(places)[2].partition("## ")[0]
    assert f"`{frozen}` (defined, not run)" in alone


def test_clear_is_told_by_students_interval_and_one_seed_tells_nothing() -> None:
    """3, 3, 6: four standard errors from zero, of 4.303 that two degrees of freedom ask for."""
    assert student_quantile(2) == pytest.approx(4.302653, abs=1e-6)
    find, known = ROWS[3], ROWS[1]
    assert clearly(find, known, "personal") == 0
    above = row("n", 85.0, 86.5, 88.5, new=True)  # 4, 4, 4.5: 25 standard errors
    assert (clearly(above, known, "personal"), clearly(known, above, "personal")) == (1, -1)
    assert clearly(row("a", 99.0), row("b", 1.0), "personal") == 0
    said = _page(ROWS)
    assert "| n 86.5 | +4.00 [−0.30, +8.30], not clear | fedbabu |" in said  # 4, 3.5, 6 to fedavg is
    assert "4.3 standard errors with 3 seeds" in said
    once = _page([row("fedavg", 80.0), row("fedbabu", 60.0), row("n", 90.0, new=True)])
    assert "| cifar10-s2 | n 90.0 (one seed) |" in once
    assert "| +10.00, one seed | fedavg and fedbabu |" in once
    some = _page([*ROWS[:2], row("fedper", 50.0)])  # far behind, but who knows
    assert "| cifar10-s2 | fedbabu 82.5 (+2) |" in some


def test_the_verdict_is_on_the_find_that_validation_data_put_first() -> None:
    """The lucky one is better on test data, which have no part in the choice of the combination that is compared."""
    first, lucky = (row(name, *values, new=True) for name, values in (("first", (84, 85, 87)), ("lucky", (91, 92, 93))))
    rows = [*ROWS[:2], lucky, first]
    for column in RANKED:
        assert f"| {TITLES[column]} | fedbabu " in (said := _page(rows, _search("first", "lucky")))
    assert said.count(" | first 8") == 2  # personal and new client
    assert "**Not settled.** first" in said
    assert " | lucky 92.0 | +" not in said
    assert "lucky (new)" in said  # it is in the table all the same
    missing = _page([*ROWS[:2], lucky], _search("first", "lucky"))
    assert " | lucky 92.0 | +" in missing
    assert "- first was ahead of it on validation data, and is not judged in cifar10-s2." in missing
    assert [one.combination["method"] for one in compare_found(rows, ["first", "lucky"], [S2])] == ["first"] * 3
    assert combinations_in_order(rows, {}) == ["lucky", "first"]


TRIED_ALL = [{"train.lr": rate, "validation": None} for rate in (0.03, 0.1, 0.3)]


def _settled(*finds: float) -> list[dict[str, Any]]:
    rows = [*ROWS[:2], row("fedper", 50.0, 50.1, 50.2), row("n", *finds, new=True)]
    return [{**one, "tried": TRIED_ALL} for one in rows]


@pytest.mark.parametrize(
    ("finds", "said"),
    [
        ((91.0, 92.0, 94.0), "**Yes.** n"),
        ((81.0, 82.6, 84.1), "**Not in everything.** n"),
        ((71.0, 72.0, 74.0), "**No.** n"),
    ],
)
def test_with_nothing_open_the_answer_is_a_word(finds: tuple[float, ...], said: str) -> None:
    made = _page(_settled(*finds))
    assert said in made
    assert "What keeps it open" not in made
    assert made.index(QUESTION) < made.index("## The best")


def test_the_answer_says_what_keeps_it_open() -> None:
    """A known method that was not judged, or is younger than the json; another machine; rates; other settings."""
    rows = [one for one in _settled(91.0, 92.0, 94.0) if one["method"] != "fedper"]
    rows[2]["machine"] = {"device": "a small one", "precision": "fp32"}
    rows[0]["tried"] = TRIED_ALL[1:]
    settings = {name: load().settings[name] for name in (S2, DIR)}
    entries = {**BOARD.entries, "fedprox": ()}
    said = _page(rows, _search("n", "uneven"), settings=settings, entries=entries)
    assert "**Not settled.** n" in said
    assert "- Known, but not judged in cifar10-s2: fedper, fedprox." in said
    assert "| ✗ | fedprox | – |" in said
    assert "- The new combination was measured on a small one (fp32), the best known methods on a device (bf16)" in said
    assert "| cifar10-s2 | personal | fedbabu 82.5 | n † 92.3 |" in said
    assert "| 1 | n (new) † | 92.3" in said
    assert "- **†**: run on a small one (fp32). The other rows ran on a device (bf16)." in said
    assert "(#the-grid-and-what-was-chosen) in cifar10-s2: 1. The new combination has none." in said
    assert "without fine-tuning" not in said
    assert "- No new combination was measured in cifar10-dir0.3." in said
    rows[2]["chosen"] = {"train.lr": 0.1, "personalize.lr": 0.01}
    tuned = _page(rows)
    assert "- In cifar10-s2 the best known by personal accuracy, fedbabu, is measured without fine-tuning" in tuned
    steady = [{**one, "method": "steady"} if one["new"] else one for one in rows]
    seen = _page(steady, _search("steady"), entries=entries)
    assert "on validation data, at one seed: fedprox 95.0, against steady 95.0" in seen


def test_without_a_find_the_answer_is_not_known() -> None:
    assert "Not known: no combination of the search has been measured" in _page(ROWS[:3])


def test_the_page_names_who_has_a_neighbour_to_try() -> None:
    said = _page(ROWS[:3])
    assert "- train.lr 0.03 for fedavg (1), fedbabu (1), fedper (1)" in said  # 0.1 was chosen, nothing beside it tried
    assert "Not tried yet" not in _page([{**one, "tried": TRIED_ALL} for one in ROWS])


def test_results_are_taken_in_and_kept_until_they_are_run_again(tmp_path: Path) -> None:
    out, file = tmp_path / "out" / "leaderboard", tmp_path / "published.json"
    out.mkdir(parents=True)
    assert not collect(tmp_path / "out", file)
    (out / "board.json").write_text(json.dumps([row("a", 80.0), row("b", 70.0)]))
    assert collect(tmp_path / "out", file)
    (out / "board.json").write_text(json.dumps([row("a", status="not run"), row("b", 75.0), row("d")]))
    assert collect(tmp_path / "out", file)
    found = {one["method"]: one["personal"] and one["personal"]["mean"] for one in read(file)["board"]}
    assert found == {"a": 80.0, "b": 75.0}


def test_a_setting_at_a_glance() -> None:
    """n − fedavg is 4, 3.5 and 6, clearly above zero (mean 4.5, Student's half-width 3.3); n − fedbabu is 3, 3 and 6,
    whose interval contains zero (mean 4, half-width 4.3). fedper diverged and has no place."""
    said = sentence(S2, ROWS)
    assert said == (
        "**cifar10-s2.** n has the highest personal accuracy (86.5 %, 1 other level) and generic accuracy (43.2 %, "
        "1 other level). FedAvg with fine-tuning has 82.0 and 41.0 %, both clearly below. Among the best in both: "
        "fedbabu and n."
    )
    alone = sentence(S2, [row("fedavg", 80.0), row("fedbabu", 81.0)])
    assert (
        "fedbabu has the highest personal accuracy (81.0 %, one seed, so it is not known which methods are level)"
        in alone
    )
    other = {**row("g", 50.0, 50.0, 50.0), "generic": row("g", 90.0, 90.0, 90.0)["personal"]}
    split = sentence(S2, [*ROWS[:2], other])
    assert "fedbabu has the highest personal accuracy (82.5 %, 1 other level) and g has the highest generic" in split
    assert "FedAvg with fine-tuning has 82.0 % (not clearly below) and 41.0 % (clearly below)." in split


def test_the_picture_has_a_dot_for_every_method_near_the_best() -> None:
    """20 points below the best personal accuracy is too far to be drawn."""
    rows = [*ROWS, row("far", 66.0, 66.5, 67.0)]
    assert [str(one["method"]) for one in shown(rows)] == ["n", "fedbabu", "fedavg"]  # the one with most bytes first
    drawn = picture({S2: rows}, "about")
    assert drawn.count("<title>") == 3
    assert "fedbabu: personal 82.5, generic 41.2, 82 MB" in drawn
    assert "far: " not in drawn


def test_names_in_the_picture_do_not_meet_and_stand_off_the_dots() -> None:
    """A name that hides a dot is moved, with a line to its own; the words of a halo are drawn above the dots."""
    crowd = [row(f"m{place}", 81.0 + place / 50, 81.5 + place / 50, 82.0 + place / 50) for place in range(30)]
    drawn = picture({S2: [*ROWS, *crowd]}, "about")
    names = re.findall(r'paint-order="stroke"><text x="([\d.]+)" y="([\d.]+)">([^<]+)</text>', drawn)
    assert {"fedavg"} < {name for _, _, name in names}
    ends = [(float(x) - 2.0 * len(name), float(x) + 2.0 * len(name), float(y)) for x, y, name in names]
    for place, one in enumerate(ends):
        for other in ends[place + 1 :]:
            assert abs(one[2] - other[2]) >= 8.9 or one[1] <= other[0] or other[1] <= one[0], (names[place], other)
