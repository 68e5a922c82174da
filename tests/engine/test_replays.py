"""Recorded steps, without an accelerator: a run with recordings is the run without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.learn.replaying import TracingRecorder
from tests.near import assert_states_near, body_for
from torch import Tensor

from torso import Config, Result, run
from torso.engine import base
from torso.learn import recorded_epochs
from torso.learn.gradients import gradients
from torso.methods import Method, methods
from torso.parallel.together import run_together

EQUAL: dict[str, Any] = {
    **{"source": "synthetic", "synthetic": {"samples": 64, "size": 4, "channels": 1}, "augment": "none"},
    **{"clients": 6, "new_clients": 2, "partition": "iid", "server_fraction": 0.1},
}
DECAY = {"schedule": "exp", "decay": 0.5}
RAGGED: dict[str, Any] = {**EQUAL, "partition": "dirichlet-class", "alpha": 0.5, "min_size": 2}


def _trains_like(method: Method) -> str:
    """Equal for methods whose local steps are the same operations."""
    return str((method.objective, method.drift, method.step, method.head, method.train, method.statistics))


ONE_OF_EACH = list({_trains_like(method): name for name, method in reversed(methods.items())}.values())


def config(method: str, data: dict[str, Any], measures: Sequence[str]) -> Config:
    return Config(
        method=method,
        data=data,
        model={"body": body_for(method)},
        train={"rounds": 4, "local_epochs": 1, "fraction": 0.5, "batch_size": 8, "lr": 0.05, **DECAY},
        personalize={"epochs": 1},
        measure={"names": list(measures)},
        run={"engine": "batched", "device": "cpu"},
    )


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> type[TracingRecorder]:
    """From now on all steps are recorded. Recordings have two steps instead of eight: to trace takes long."""
    monkeypatch.setattr(base, "recorder_for", lambda net, *_: TracingRecorder(gradients, frozen=net.frozen))
    monkeypatch.setattr(recorded_epochs, "_MOST", 2)
    monkeypatch.setattr(F, "one_hot", _one_hot)
    monkeypatch.setattr(TracingRecorder, "traced", 0)
    monkeypatch.setattr(TracingRecorder, "replayed", 0)
    return TracingRecorder


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    """As on an accelerator: torch's own looks at the labels if they are on the CPU."""
    return (labels.unsqueeze(-1) == torch.arange(classes)).long()


def same(one: Result, other: Result) -> None:
    assert_states_near(one, other, model=1e-5, kept=1e-3)  # control variates are small differences
    for name, found in one.accuracy.items():
        assert found.mean == pytest.approx(other.accuracy[name].mean, abs=1e-3), name


@pytest.mark.parametrize("method", ONE_OF_EACH)
def test_a_recorded_run_of_every_way_to_train(method: str, request: pytest.FixtureRequest) -> None:
    """A trace, like a CUDA graph, keeps numbers of the host, so those of the first visit would be found here, such as
    its learning rate. It refuses to wait for a number of the device."""
    chosen = config(method, EQUAL, ["personalized"])
    wanted = run(chosen)
    recorder = request.getfixturevalue("tracing")
    same(run(chosen), wanted)
    if method != "fedrod-meta-bsm":  # its steps are its own
        assert recorder.replayed > recorder.traced > 0


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "per-fedavg", "fedrod-hyper", "fedpac"])
def test_clients_of_different_sizes_and_newcomers(method: str, request: pytest.FixtureRequest) -> None:
    """Recordings of fewer clients, masked batches, and the plan of a newcomer as a part of a key."""
    chosen = config(method, RAGGED, ["personalized", "new_after"])
    wanted = run(chosen)
    recorder = request.getfixturevalue("tracing")
    same(run(chosen), wanted)
    assert recorder.replayed > 0 < recorder.traced


@pytest.mark.parametrize("method", ["fedprox", "fedrod-hyper"])
def test_runs_side_by_side_share_recordings(method: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two seeds with rates of their own, in one stack."""
    chosen = [
        config(method, RAGGED, ["personalized", "new_after"]).but(f"run.seed={seed}", f"train.lr={0.05 / (seed + 1)}")
        for seed in range(2)
    ]
    wanted = [run(one) for one in chosen]
    recorder = request.getfixturevalue("tracing")
    found = dict(run_together(chosen, [tmp_path / "0", tmp_path / "1"], clients=64))
    for number, one in enumerate(wanted):
        result = found[number]
        assert isinstance(result, Result)
        same(result, one)
    assert recorder.replayed > 0 < recorder.traced
