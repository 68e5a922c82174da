"""Many configs, each in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.papers.tiny import QUICK

from torso.config import Config
from torso.errors import DeviceFull, RequestError
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


def test_runs_that_do_not_fit_do_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named at the end. The device cannot be made small here, so what some runs give is replaced."""
    from torso.papers.experiments import runner

    whole = runner.run_together

    def some_full(configs: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        for place, end in whole(configs, *arguments, **options):
            yield place, DeviceFull("client 0 alone") if configs[place].run.seed % 2 == 0 else end

    monkeypatch.setattr(runner, "run_together", some_full)
    waiting = [Named(f"seed{seed}", Config().but(*QUICK, f"run.seed={seed}")) for seed in range(4)]
    done = list[str]()
    with pytest.raises(RequestError, match=r"^seed0 and 1 more do not fit .* \(client 0 alone\)\. The other runs"):
        done.extend(one.name for one, _ in run_all(waiting, tmp_path, {}, None, None))
    assert done == ["seed1", "seed3"]
