"""Runs of a network with dropout: the same in a stack, in threads and after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torso import Config
from torso.nets import Tensors
from torso.runs.run import run


def settings(*sets: str) -> Config:
    """Ragged clients, two epochs; momentum, so that a mistake in one step shows in the next."""
    return Config(
        method="fedper",
        data={
            "source": "synthetic",
            "clients": 6,
            "partition": "dirichlet-class",
            "alpha": 0.5,
            "synthetic": {"samples": 150, "test_samples": 30, "size": 8},
        },
        model={"body": "pfl-cnn"},
        train={"rounds": 2, "local_epochs": 2, "fraction": 0.7, "batch_size": 10, "lr": 0.05, "momentum": 0.9},
        measure={"every": 0, "names": ["initial"]},
        run={"device": "cpu", "workers": 1, "checkpoint_every": 1},
    ).but(*sets)


def model_of(config: Config) -> Tensors:
    state = run(config).state
    assert state is not None
    return state.model


@pytest.fixture(scope="module")
def usual() -> Tensors:
    return model_of(settings())


def test_a_stack_is_the_same_to_rounding(usual: Tensors) -> None:
    for stack in (2, 4):
        found = model_of(settings("run.engine=batched", f"run.clients_at_once={stack}"))
        for name, tensor in usual.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_threads_change_no_bit(usual: Tensors) -> None:
    found = model_of(settings("run.workers=2"))
    assert all(torch.equal(found[name], tensor) for name, tensor in usual.items())


def test_another_seed_leaves_out_others(usual: Tensors) -> None:
    found = model_of(settings("run.seed=1"))
    assert not torch.allclose(found["body.blocks.0.conv.weight"], usual["body.blocks.0.conv.weight"], atol=1e-3)


def test_a_run_that_goes_on_is_the_run_to_the_bit(usual: Tensors, tmp_path: Path) -> None:
    run(settings("train.rounds=1"), tmp_path / "run")
    state = run(settings(), tmp_path / "run", resume=True).state
    assert state is not None
    assert all(torch.equal(state.model[name], tensor) for name, tensor in usual.items())
