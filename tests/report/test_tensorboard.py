"""Events that TensorBoard reads, and a clear word where it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torso.config import Config
from torso.errors import RequestError
from torso.report.tensorboard import TensorBoard
from torso.runs.events import Listener
from torso.runs.run import run


def test_without_tensorboard_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RequestError, match=r'pip install "torso\[tensorboard\]"'):
        TensorBoard(Listener())


def test_tensorboard_opens_the_events(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = Config(data={"clients": 10}, train={"rounds": 3}, measure={"every": 1}, run={"workers": 1})
    result = run(config, tmp_path / "a", listener=TensorBoard(Listener()))
    events = accumulator.EventAccumulator(str(tmp_path / "a" / "events"))
    events.Reload()
    assert {"train/loss", "cost/megabytes", "accuracy/initial", "accuracy/personalized"} <= set(
        events.Tags()["scalars"]
    )
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    last = events.Scalars("accuracy/personalized")[-1]
    assert (last.step, last.value) == (3, pytest.approx(result.accuracy["personalized"].mean, rel=1e-5))
