"""The same rounds in Torso, pfl-research and Flower's simulation on this machine's CPU: `python bench/side_by_side.py`.

FedAvg: 100 clients with 50 images of 32×32×3 each, 10 clients a round, batches of 10, one local epoch, SGD at 0.1; a
CNN of two 3×3 convolutions (32 and 64 channels), a pool, a hidden layer of 128, as in pfl-research's own benchmark on
CIFAR-10 without its dropout. All three get the same module and the same images. A round is timed from one to the next
inside a process, after two rounds of warm-up; nothing is evaluated. Each framework uses both cores in the way that it
offers: Torso its threads, Flower two client processes (Ray), pfl-research torch's threads.

pfl-research is not a dependency of Torso. Install it elsewhere and say where:
    pip install --no-deps --target OTHERS pfl==0.6.0 "dp-accounting<0.6" prv-accountant multiprocess dill
    python bench/side_by_side.py --others OTHERS
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS, SAMPLES, PER_ROUND, BATCH, RATE, WARM = 100, 50, 10, 10, 0.1, 2


def module() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def clients() -> list[tuple[Any, Any]]:
    """Images as floats, which all three take as they are, and labels."""
    import torch

    draw = torch.Generator().manual_seed(0)
    images = torch.randn(CLIENTS, SAMPLES, 3, 32, 32, generator=draw)
    labels = torch.randint(10, (CLIENTS, SAMPLES), generator=draw)
    return list(zip(images, labels, strict=True))


def with_torso(rounds: int) -> list[float]:
    import torso

    stamps: list[float] = []
    config = torso.Config(
        method="fedavg",
        train={
            **{"rounds": rounds, "fraction": PER_ROUND / CLIENTS, "local_epochs": 1, "batch_size": BATCH, "lr": RATE},
            **{"momentum": 0.0, "schedule": "const"},
        },
        measure={"names": []},
    )
    torso.run(config, clients=clients(), model=module(), on_round=lambda *_: stamps.append(time.perf_counter()))
    return stamps


def with_pfl(rounds: int) -> list[float]:
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.framework_types import MLFramework
    from pfl.internal.ops.selector import set_framework_module
    from pfl.model.pytorch import PyTorchModel

    class Learner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = module()

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def loss(self, x: Any, y: Any, eval: bool = False) -> Any:
            self.train(not eval)
            return torch.nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: Any, y: Any, eval: bool = False) -> dict[str, Any]:
            return {}

    class Stamps(TrainingProcessCallback):
        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
            stamps.append(time.perf_counter())
            return False, type(metrics)()

    assert MLFramework.PYTORCH
    set_framework_module(pytorch_ops)
    np.random.seed(0)
    stamps: list[float] = []
    data = clients()
    sampler = get_user_sampler("random", list(range(CLIENTS)))
    users = FederatedDataset(lambda user: Dataset(raw_data=list(data[user])), sampler)
    learner = Learner()
    model = PyTorchModel(
        model=learner,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(learner.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=PER_ROUND,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(local_learning_rate=RATE, local_num_epochs=1, local_batch_size=BATCH),
        callbacks=[Stamps()],
    )
    return stamps


def with_flower(rounds: int) -> list[float]:
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    stamps: list[float] = []
    server, client = ServerApp(), ClientApp()
    data = clients()

    class Stamped(FedAvg):
        def aggregate_train(self, *args: Any, **more: Any) -> Any:
            found = super().aggregate_train(*args, **more)
            stamps.append(time.perf_counter())
            return found

    @server.main()
    def main(grid: Any, context: Any) -> None:
        strategy = Stamped(fraction_train=PER_ROUND / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(module().state_dict()), num_rounds=rounds)

    @client.train()
    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        net = module()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = data[context.node_config["partition-id"]]
        optimiser = torch.optim.SGD(net.parameters(), RATE)
        for rows in torch.randperm(SAMPLES).split(BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimiser.step()
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
        return Message(content=RecordDict(content), reply_to=message)

    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    return stamps


FRAMEWORKS = {"torso": with_torso, "pfl": with_pfl, "flwr": with_flower}


def child(name: str, rounds: int, others: str) -> dict[str, Any]:
    """One framework in a process of its own: seconds of each round after the warm-up, and CPU seconds of all of it."""
    words = [sys.executable, __file__, "--child", name, "--rounds", str(rounds)]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), others if name == "pfl" else ""]))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        words, env={**os.environ, **quiet, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--others", default="", help="folder with pfl-research")
    parser.add_argument("--only", nargs="+", default=list(FRAMEWORKS), choices=list(FRAMEWORKS))
    parser.add_argument("--out", type=Path, default=HERE / "side_by_side.json")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        stamps = FRAMEWORKS[asked.child](asked.rounds + WARM)
        rounds = [after - before for before, after in zip(stamps[WARM - 1 :], stamps[WARM:], strict=False)]
        try:
            found = version(asked.child)
        except PackageNotFoundError:
            found = "?"
        print("\n" + json.dumps({"seconds": rounds, "version": found}), flush=True)
        return
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in asked.only}
    load = round(os.getloadavg()[0], 1)
    for _ in range(asked.repeats):  # in turns, so that a busy minute hits all
        for name in asked.only:
            rows[name].append(child(name, asked.rounds, asked.others))
            print(f"{name:>6} {1000 * median(rows[name][-1]['seconds']):8.1f} ms a round", flush=True)
    images = PER_ROUND * SAMPLES
    table = {
        name: {
            "version": found[0]["version"],
            "ms_a_round": [round(1000 * median(one["seconds"]), 1) for one in found],
            "images_per_second": round(median(images / median(one["seconds"]) for one in found)),
        }
        for name, found in rows.items()
    }
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "load_before": load}
    versions = {"python": platform.python_version(), "torch": version("torch")}
    kept = {"machine": machine, "versions": versions, "rounds": asked.rounds, "n": asked.repeats, "frameworks": table}
    asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for name, row in table.items():
        print(f"{name:>6} {row['version']:>8} {row['images_per_second']:>7,} images/s  {row['ms_a_round']} ms a round")


if __name__ == "__main__":
    main()
