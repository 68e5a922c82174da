"""One client has one intra-op thread, also the first client of a worker thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.engine.clusters import config
from torch import Tensor

from torso.engine import OneByOne, Workspace
from torso.runs.job import simulate


@dataclass(frozen=True)
class Products:
    """Work that begins with what MKL rounds otherwise when it has two threads."""

    samples: Tensor
    weight: Tensor

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        flat = self.weight.flatten()
        return self.samples @ self.weight.T, torch.dot(flat, flat)


def check_first_products() -> None:
    """A batch of 7 through the first layer of mlp, and a sum over a million numbers."""
    generator = torch.Generator().manual_seed(0)
    layer = Products(torch.randn(7, 64, generator=generator), torch.randn(200, 64, generator=generator))
    wide = Products(torch.randn(7, 1000, generator=generator), torch.randn(1000, 1000, generator=generator))
    job = simulate(config("fedavg", "one-by-one"))
    torch.set_num_threads(1)
    workspace = Workspace.at(job.net, job.federation)
    for work in (layer, wide):
        with OneByOne(job.net, job.federation, workers=1) as engine:
            (found,) = engine.map(work, [0])
        for one, other in zip(found, work(workspace, [0]), strict=True):
            assert torch.equal(one, other), f"{(one - other).abs().max():.1e} away from what one thread computes"


def test_the_first_products_of_a_worker_thread_use_one_core() -> None:
    """In a process that may use two cores, however many the machine has and these tests may use."""
    done = subprocess.run(
        [sys.executable, "-c", "from tests.engine.test_threads import check_first_products as c; c()"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_workers_are_as_many_as_asked_or_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torso.engine.threads.os.cpu_count", lambda: 7)
    job = simulate(config("fedavg", "one-by-one"))
    found = [OneByOne(job.net, job.federation, workers=n).workers for n in (3, 0)]
    assert found == [3, 7]


def test_torch_has_its_threads_back_after_the_engine() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    job = simulate(config("fedavg", "one-by-one"))
    try:
        with OneByOne(job.net, job.federation, workers=2) as engine:
            assert torch.get_num_threads() == 1
            assert len(list(engine.map(Products(torch.ones(1, 1), torch.ones(1, 1)), range(4)))) == 4
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
