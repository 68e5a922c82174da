"""What only an accelerator can show: nobody waits for it in the middle of a round, and it agrees with the CPU."""

from __future__ import annotations

import pytest
import torch

from torso import Config
from torso.engine import Batched
from torso.personal.state import State
from torso.runs.aggregate import Aggregate
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import participants, play_round, tell, visit_of, weights_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SYNTHETIC = {"samples": 400, "test_samples": 40, "size": 32, "channels": 3}


def job(
    body: str, method: str = "fedbabu", device: str = "cuda", batch_size: int = 16, alpha: float = 0.5
) -> Simulation:
    data = {"source": "synthetic", "clients": 8, "partition": "dirichlet-class", "alpha": alpha, "augment": "crop-flip"}
    return simulate(
        Config(
            method=method,
            data={**data, "synthetic": SYNTHETIC},
            model={"body": body},
            train={"rounds": 3, "local_epochs": 1, "fraction": 0.5, "batch_size": batch_size, "lr": 0.01},
            run={"device": device},
        )
    )


@pytest.mark.parametrize("method", ["fedbabu", "scaffold", "ditto", "per-fedavg", "fedrod-hyper", "feddyn", "fedexp"])
def test_nobody_waits_for_the_device_during_a_visit(method: str) -> None:
    task = job("conv4", method)
    stage, state = task.plan[0], State.begin(task.model)
    with Batched(task.net, task.federation) as engine:
        for _ in range(2):  # kernels are compiled and recorded
            state, _ = play_round(stage, state, task.roster, engine, seed=0)
        chosen = participants(stage, task.roster, 0, 2)
        told = tell(stage, state.server, task.roster, chosen, 2, seed=0)
        visit, weights = visit_of(stage, told, seed=0), weights_of(task.roster, chosen, "samples")

        def meet() -> None:
            came = Aggregate(stage, told, weights)
            for sent in engine.map(visit, chosen, state.clients):
                came.take(sent)

        meet()
        torch.cuda.set_sync_debug_mode("error")
        try:
            meet()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("body", ["conv4", "mobilenet", "resnet18", "vgg11"])
def test_a_step_on_the_device_is_a_step_on_cpu(body: str) -> None:
    """One step of ragged batches in fp32: from the second step on, float32 sums in another order make deep networks
    with BatchNorm part ways on CPU alone (a stack of four against clients one by one), so a round shows nothing."""
    ends = []
    for device in ("cpu", "cuda"):
        task = job(body, "fedavg", device, batch_size=64, alpha=5.0)  # 42 to 56 images a client
        with Batched(task.net, task.federation, precision="fp32") as engine:
            state, _ = play_round(task.plan[0], State.begin(task.model), task.roster, engine, seed=0)
        ends.append({name: (tensor - task.model[name]).cpu().double() for name, tensor in state.model.items()})
    on_cpu, on_device = (torch.cat([step.flatten() for step in steps.values()]) for steps in ends)
    assert (on_cpu - on_device).norm() / on_cpu.norm() < 0.1
