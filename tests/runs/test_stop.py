"""A stop that is asked for while a run is measured, or between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torso import Result, run
from torso.measure.evaluate import MeasureWork
from torso.parallel.compare import compare
from torso.parallel.together import run_together
from torso.runs.events import Stop
from torso.runs.run import Stopped

from .samples import TINY, StopAfter, assert_same_run, tiny


class StopsAtTheEnd(StopAfter):
    def __init__(self) -> None:
        super().__init__(99)

    def end(self, result: Result) -> None:
        self.stop.ask()


class StopsWhileMeasuring(StopAfter):
    """Asks when clients begin to be measured at the end, or in the middle of them."""

    def __init__(self, patch: pytest.MonkeyPatch | None = None) -> None:
        super().__init__(99)
        self.when, self.groups = "", 0
        self.patch = patch

    def measuring(self, clients: int) -> None:
        self.when = self.stop.when
        if self.patch is None:
            self.stop.ask()
            return
        measure = MeasureWork.__call__

        def counted(*args: Any) -> Any:
            self.groups += 1
            if self.groups == 3:
                self.stop.ask()
            return measure(*args)

        self.patch.setattr(MeasureWork, "__call__", counted)


@pytest.mark.parametrize("within", [False, True])
def test_a_stop_while_the_run_is_measured_is_heeded_between_clients(
    within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        listener = StopsWhileMeasuring(patch if within else None)
        with pytest.raises(
            Stopped, match=r"stopped after round 4 of 4, before .* Continue with: torso run .* --resume"
        ):
            run(tiny("fedper"), folder, listener=listener, stop=listener.stop)
    assert listener.groups < 10  # of ten clients
    assert not (folder / "result.json").exists()
    run(tiny("fedper"), folder, resume=True)
    run(tiny("fedper"), tmp_path / "whole")
    assert_same_run(folder, tmp_path / "whole")


def test_a_comparison_stops_at_the_run_that_is_measured(tmp_path: Path) -> None:
    listener = StopsWhileMeasuring()
    sets = [*TINY, "train.rounds=1"]
    with pytest.raises(Stopped, match=r"^fedavg seed 0: stopped after round 1 of 1, .*, or the whole comparison with"):
        compare(["fedavg", "fedper"], None, sets, out=tmp_path, listener=listener, stop=listener.stop)
    assert [path.name for path in tmp_path.iterdir()] == ["fedavg-seed0"]
    ended = StopsAtTheEnd()
    with pytest.raises(Stopped, match=r"^stopped with 1 of 2 runs finished\. Continue with the same .* --resume$"):
        compare(["fedavg", "fedper"], None, sets, out=tmp_path, resume=True, listener=ended, stop=ended.stop)
    assert [path.name for path in tmp_path.iterdir()] == ["fedavg-seed0"]


def test_runs_together_look_before_each(tmp_path: Path) -> None:
    ended = StopsAtTheEnd()
    asked = [tiny("fedavg", "train.rounds=1"), tiny("fedper", "train.rounds=1")]
    ends = run_together(asked, [tmp_path / "0", tmp_path / "1"], listener=ended, stop=ended.stop)
    assert next(ends)[0] == 0
    with pytest.raises(Stopped, match="stopped with 1 of 2 runs finished"):
        next(ends)
    assert not (tmp_path / "1").exists()


def test_a_run_says_when_it_would_stop() -> None:
    listener = StopsWhileMeasuring()
    assert listener.stop.when == Stop.ROUND
    with pytest.raises(Stopped):
        run(tiny(), listener=listener, stop=listener.stop)
    assert listener.when == Stop.MEASURE
