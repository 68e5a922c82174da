"""The privacy of runs on the page and in tables, as results and histories tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torso.report.charts import KINDS
from torso.report.comparison import Comparison, compare_folders
from torso.report.table import rows_of

from .samples import PRIVATE, write_run


def test_privacy_spent_is_drawn_of_private_runs_alone(tmp_path: Path, full: Comparison) -> None:
    (chart,) = KINDS["epsilon"].make(full)
    assert [row[1:] for row in chart.rows if row[0] == "fedavg"] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    write_run(tmp_path / "plain", "fedavg")
    assert KINDS["epsilon"].make(compare_folders([tmp_path / "plain"])) == []


@pytest.mark.parametrize(
    ("private", "cell", "said"),
    [
        (PRIVATE, "0.4", "ε = 0.4 at δ = 0.01 for a client among 50, each with probability 0.2 in a round; noise 1.5"),
        ({**PRIVATE, "epsilon": None, "noise": 0.0}, "∞", "ε = ∞ at δ = 0.01"),
        ({**PRIVATE, "sampling": "fixed", "adaptive": True}, "0.4", "a fixed share of 0.2 in a round"),
        ({"epsilon": "8"}, "–", ""),
        ("private", "–", ""),
    ],
)
def test_privacy_in_words_and_what_cannot_be_read(tmp_path: Path, private: Any, cell: str, said: str) -> None:
    write_run(tmp_path / "run", "fedavg", private=private)
    comparison = compare_folders([tmp_path])
    (row,) = rows_of(comparison)
    assert row.epsilon == cell
    notes = [note for note in comparison.notes() if note.startswith("fedavg: private")]
    assert [said in note for note in notes] == ([True] if said else [])
