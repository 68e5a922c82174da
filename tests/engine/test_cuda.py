"""What only an accelerator can show: nobody waits for it in the middle of a round, and it agrees with the CPU."""

from __future__ import annotations

import pytest
import torch

from torso import Config
from torso.engine import Batched
from torso.runs.rounds import participants, play_round, visit_of, weights_of
from torso.runs.run import Job, prepare
from torso.runs.state import State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SYNTHETIC = {"samples": 400, "test_samples": 40, "size": 32, "channels": 3}


def job(body: str, method: str = "fedbabu", device: str = "cuda") -> Job:
    data = {"source": "synthetic", "clients": 8, "partition": "dirichlet-class", "alpha": 0.5, "augment": "crop-flip"}
    return prepare(
        Config(
            method=method,
            data={**data, "synthetic": SYNTHETIC},
            model={"body": body},
            train={"rounds": 3, "local_epochs": 1, "fraction": 0.5, "batch_size": 16, "lr": 0.01},
            run={"device": device},
        )
    )


@pytest.mark.parametrize("method", ["fedbabu", "scaffold", "ditto", "per-fedavg", "fedrod-hyper"])
def test_nobody_waits_for_the_device_during_a_visit(method: str) -> None:
    task = job("conv4", method)
    stage, state = task.plan[0], State(task.model)
    with Batched(task.net, task.federation) as engine:
        for _ in range(2):  # kernels are compiled and recorded
            state, _ = play_round(stage, state, task.federation, engine, seed=0)
        chosen = participants(stage, task.federation, 0, 2)
        weights = weights_of(task.federation, chosen, "samples")
        visit = visit_of(stage, state, task.federation.clients, 2, weights, seed=0)
        list(engine.map(visit, chosen))
        torch.cuda.set_sync_debug_mode("error")
        try:
            list(engine.map(visit, chosen))
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("body", ["conv4", "mobilenet", "resnet18", "vgg11"])
def test_a_round_on_the_device_is_a_round_on_cpu(body: str) -> None:
    """In fp32, to what float32 sums in another order and a few ReLUs at their edge can do to one round."""
    ends = []
    for device in ("cpu", "cuda"):
        task = job(body, "fedavg", device)
        with Batched(task.net, task.federation, precision="fp32") as engine:
            state, _ = play_round(task.plan[0], State(task.model), task.federation, engine, seed=0)
        ends.append({name: tensor.cpu().double() for name, tensor in state.model.items()})
    moved = {name: tensor.double() for name, tensor in job(body, "fedavg", "cpu").model.items()}
    for name, tensor in ends[0].items():
        step = (tensor - moved[name]).norm().clamp(min=1e-3)
        assert (tensor - ends[1][name]).norm() / step < 0.1, name
