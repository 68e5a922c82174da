"""The pages of docs/reproduction, from answers that are made up here."""

from __future__ import annotations

from torso.papers.pages.reproduction import claims_page, overview
from torso.papers.pages.table import cell, notes
from torso.papers.tables.collect import blank
from torso.papers.tables.published import recipe

from ..lines import answer, failed, nothing


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
