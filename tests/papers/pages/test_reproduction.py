"""The pages of docs/reproduction, from answers that are made up here."""

from __future__ import annotations

import json
from pathlib import Path

from torso.papers.pages import tried
from torso.papers.pages.claims import verdicts
from torso.papers.pages.glance import draw, glance
from torso.papers.pages.reproduction import claims_page, overview
from torso.papers.pages.scatter import groups, scatter
from torso.papers.pages.table import cell, notes
from torso.papers.tables.collect import blank
from torso.papers.tables.published import recipe

from ..lines import answer, failed, nothing, second


def test_a_cell_says_how_many_seeds_failed() -> None:
    assert cell(failed(answer("A", (80.0,), 79.0), 2)) == "80.0 ✗ 2 of 3 failed (79.0, +1.0)"
    assert cell(failed(nothing("A", 79.0), 3)) == "✗ (79.0)"
    assert cell(answer("A", (80.0,), None)) == "80.0 (✗)"
    assert cell(nothing("A", 79.0)) == "– (79.0)"


def test_doubts_about_published_numbers_are_told() -> None:
    said = notes(recipe("fedbabu/15"), blank("fedbabu/15"))
    assert "2 published numbers: conv12 and conv123 cells are identical in the paper (probable copy error)." in said
    assert any("not converge" in line for line in notes(recipe("fedfn/a2"), blank("fedfn/a2")))


def test_the_pages_say_what_ran_where_and_what_did_not() -> None:
    tables = {"fedbabu/13": [answer("FedBABU", (88.0, 90.0), 88.5, fraction=0.1, local_epochs=10)]}
    page = overview(tables)
    assert "89.0 (88.5, +0.5)" in page
    assert "a machine (bf16)" in page
    assert "re-encoded as JPEG" in page
    assert "| 1 of 1 | 1 of 1 | 1 of 1 | +0.5 | – | – |" in page
    assert "no evidence yet" in claims_page({})
    assert "(spec" not in claims_page({})


def test_a_glance_has_a_row_for_each_paper_and_a_picture_of_what_was_run(tmp_path: Path) -> None:
    """Two of three main runs are within 3 points. A variant of ten numbers is shown, one of nine is not."""
    lines = [answer("FedBABU", (80.0 + by,), 80.0, shards=n) for n, by in enumerate((0.0, 2.9, 3.1))]
    lines += [second(answer("FedPer", (70.0,), 70.0, shards=n), "another way") for n in range(10)]
    lines += [second(answer("FedRep", (70.0,), 70.0, shards=n), "rare") for n in range(9)]
    tables = {"fedbabu/13": lines}
    said = "\n".join(glance(tables, verdicts(tables)))
    row = next(line for line in said.splitlines() if "[FedBABU]" in line)
    assert "| 2 of 3 |" in row
    assert "| FedBABU | *another way* | 10 of 10 |" in said
    assert "*rare*" not in said
    assert "| 0 | 0 | 0 | 24 |" in row  # claims
    assert "0 hold, 0 hold in part and 0 do not hold. For the other 53 there is no evidence yet." in said
    assert [line for line in said.splitlines() if line.startswith("![")] == [
        "![FedBABU: ours against published](fedbabu.svg)"
    ]
    assert said.count("none run") == 3
    draw(tables, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fedbabu.svg"]


def test_the_picture_has_a_dot_for_each_number_that_can_be_compared() -> None:
    lines = [answer("A", (50.0,), 40.0), second(answer("A", (41.0,), 40.0)), failed(nothing("B", 40.0))]
    assert {way: len(some) for way, some in groups(lines).items()} == {"main runs": 1, "as the paper's code": 1}
    picture = scatter("FedBABU", lines)
    assert picture.count("<circle") == 2 + 2  # and one each in the legend
    assert "prefers-color-scheme:dark" in picture
    assert "0 of 1 near" in picture
    assert "1 of 1 near" in picture
    assert scatter("FedBABU", [nothing("A", 40.0)]) == ""


def test_a_note_of_several_tables_is_told_once() -> None:
    line = answer("FedBABU", (88.0,), 88.5, fraction=0.1, local_epochs=10)
    page = overview({"fedbabu/13": [line], "fedbabu/15": [{**line, "table": "15"}]})
    assert page.count("The paper's code measures the round that is best on test data") == 1
    assert "0 of 2 numbers have it" in page


def test_what_was_tried_has_leads_by_hand(tmp_path: Path) -> None:
    """FedAvg 60 and 62, Fed-RoD 70: a lead of 9. Published at α = 0.1: 57.6 and 68.5."""
    rows = [
        {"method": "fedavg", "accuracy": {"generic": [60.0, 62.0], "personal": [90.0, 90.0]}},
        {"method": "fedrod-hyper", "accuracy": {"generic": [70.0], "personal": [89.5]}, "doubt": "made up"},
    ]
    common = {"change": "a change", "sets": [], "alpha": 0.1, "data": "CIFAR10", "origin": "here"}
    tree = {"origins": {"here": "this test"}, "rows": [{**common, **row} for row in rows]}
    assert tried.page(tmp_path) == ""
    (tmp_path / "tried.json").write_text(json.dumps(tree))
    page = tried.page(tmp_path)
    assert "| a change | 61.0 / – / 90.0 |  |  |  | 70.0 / – / 89.5 | +9.0 | -0.5 | 1 or 2 | here |" in page
    published = next(line for line in page.splitlines() if "**published**" in line)
    assert "| +10.9 | +2.0 |" in published
    assert "- a change: made up." in page


def test_what_the_paper_leaves_unsaid_has_a_row_for_each_change_that_was_run(tmp_path: Path) -> None:
    """FedAvg 85, Fed-RoD (linear) 84 and 86 after a change: leads of -1 and +1. Published: 85.1, 86.4, 86.8."""
    row = {"change": "a change", "alpha": 0.3, "data": "CIFAR10", "origin": "here", "method": "fedavg"}
    tree = {"origins": {"here": "this test"}, "rows": [{**row, "accuracy": {"personal": [80.0]}}]}
    (tmp_path / "tried.json").write_text(json.dumps(tree))
    assert "Not run yet: [rod-personal.plan]" in tried.page(tmp_path)
    lines = [
        (answer("FedAvg", (84.0, 86.0), 85.1, alpha=0.3), ""),
        (answer("Fed-RoD (linear)", (84.0,), 86.4, alpha=0.3), ""),
        (answer("Fed-RoD (linear)", (86.0,), 86.4, alpha=0.3), "tried: the server's generic head"),
        (answer("Fed-RoD (linear)", (99.0,), 92.7, alpha=0.1), ""),
    ]
    found = [{**second(line, name), "metric": "P-FL (PM)"} for line, name in lines]
    (tmp_path / "fedrod-8.json").write_text(json.dumps(found))
    page = tried.page(tmp_path)
    assert "| the recipe |  | – / – / 85.0 | – / – / 84.0 |  | -1.0 |  | 1 or 2 |" in page
    changed = "| the server's generic head | `method.personal.mode=global-head` |  | – / – / 86.0 |  | +1.0 |  | 1 |"
    assert changed in page
    assert "| +1.3 | +1.7 |  |" in page
    assert "log class proportions" not in page
    split = "| the recipe: the author's split | – / – / 85.0 |  |  | – / – / 84.0 |  |  | -1.0 | 1 or 2 | recipe |"
    assert split in page
