"""Many configs, each in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.papers.tiny import QUICK

from torso.config import Config
from torso.papers.experiments.runner import run_all
from torso.results.result import Result


@dataclass(frozen=True)
class Named:
    name: str
    config: Config


def test_results_of_many_runs_do_not_keep_data_and_models(tmp_path: Path) -> None:
    """A leaderboard of 500 runs with features of their own took 9 GB."""
    waiting = [Named(f"seed{seed}", Config().but(*QUICK, f"run.seed={seed}")) for seed in range(2)]
    ends = dict(run_all(waiting, tmp_path, {}, None, None))
    assert len(ends) == 2
    for found in ends.values():
        assert isinstance(found, Result)
        assert found.ok
        assert found.federation is None
        assert found.state is None
