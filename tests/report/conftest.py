"""Runs that several files of tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from torso.report.comparison import Comparison, compare_folders

from .samples import PRIVATE, all_analyses, write_run


@pytest.fixture
def full_runs(tmp_path: Path) -> Path:
    """Four methods with everything that can be measured."""
    for number, method in enumerate(("fedavg", "fedbabu", "fedper", "fedprox")):
        found = {
            "initial": [50.0 + number, 60.0, 70.0],
            "personalized": [70.0, 59.0 + number, 90.0],
            "local_only": [60.0, 60.0, 95.0],
            **{f"personalized@{e}": [40.0 + e, 50.0, 60.0] for e in (0, 1, 5)},
            "generic": [55.0],
        }
        held = {"analyses": all_analyses(), "missing": [2], "hours": 2.5, "private": PRIVATE}
        write_run(tmp_path / "runs" / method, method, accuracy=found, **held)
    return tmp_path / "runs"


@pytest.fixture
def full(full_runs: Path) -> Comparison:
    return compare_folders([full_runs])
