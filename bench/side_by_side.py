"""The same rounds in Torso, pfl-research, Flower's simulation and FedJAX on this machine's CPU.

    python bench/side_by_side.py --setup FOLDER     makes a virtual environment for each of the others in FOLDER, once
    python bench/side_by_side.py --envs FOLDER      prints the table

FedAvg: 100 clients with 50 images of 32×32×3 each, 10 clients a round, batches of 10, one local epoch, SGD at 0.1; a
CNN of two 3×3 convolutions (32 and 64 channels), a pool, a hidden layer of 128, as in pfl-research's own benchmark on
CIFAR-10 without its dropout. Torso, pfl-research and Flower get the same `nn.Module` and the same images. FedJAX gets
the same layers in haiku (channels last, 1,626,442 parameters as the others, its own initial weights) and the same
images. Nothing is evaluated.

Each framework runs in its own process. Time is taken from one round to the next, after two rounds to warm up: wall
seconds, and CPU seconds of the process and of all processes that it has started (Ray's included). Each framework uses
two cores as it can: Torso two threads that train a client each, Flower two client processes (Ray). pfl-research and
FedJAX only have threads inside operations. They get one, since CPU seconds are compared; `--threads 2` gives them two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS, SAMPLES, PER_ROUND, BATCH, RATE, WARM = 100, 50, 10, 10, 0.1, 2
MARK = "SIDE_BY_SIDE"  # in the environment of all processes of a measurement
TORCH = "torch>=2.11,<2.14"


class Clock:
    """Called after every round."""

    def __init__(self, rounds: int) -> None:
        self.last, self.stamps, self.cpu = rounds, list[float](), list[float]()

    def __call__(self) -> None:
        if len(self.stamps) + 1 in (WARM, self.last):
            self.cpu.append(cpu_seconds(os.environ[MARK]))
        self.stamps.append(time.perf_counter())

    def found(self) -> dict[str, Any]:
        seconds = [after - before for before, after in zip(self.stamps[WARM - 1 :], self.stamps[WARM:], strict=False)]
        return {"seconds": seconds, "cpu": (self.cpu[1] - self.cpu[0]) / len(seconds)}


def cpu_seconds(mark: str) -> float:
    """CPU seconds of all processes with this mark in their environment, and of their children that have ended."""
    ticks, words = 0, f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if words in (place / "environ").read_bytes().split(b"\0"):
                ticks += sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:  # it has ended, or is not ours
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def arrays() -> list[tuple[Any, Any]]:
    """Images [n, 3, 32, 32] and labels of all clients."""
    import numpy as np

    draw = np.random.default_rng(0)
    images = draw.standard_normal((CLIENTS, SAMPLES, 3, 32, 32), dtype=np.float32)
    return list(zip(images, draw.integers(10, size=(CLIENTS, SAMPLES)), strict=True))


def module() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def clients() -> list[tuple[Any, Any]]:
    """Images as floats, which all frameworks accept, and labels."""
    import torch

    return [(torch.from_numpy(images), torch.from_numpy(labels)) for images, labels in arrays()]


def with_torso(rounds: int, clock: Clock) -> None:
    import torso

    config = torso.Config(
        method="fedavg",
        train={
            **{"rounds": rounds, "fraction": PER_ROUND / CLIENTS, "local_epochs": 1, "batch_size": BATCH, "lr": RATE},
            **{"momentum": 0.0, "schedule": "const"},
        },
        measure={"names": []},
    )
    torso.run(config, clients=clients(), model=module(), on_round=lambda *_: clock())


def with_pfl(rounds: int, clock: Clock) -> None:
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
            clock()
            return False, type(metrics)()

    assert MLFramework.PYTORCH
    set_framework_module(pytorch_ops)
    np.random.seed(0)
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


def with_flower(rounds: int, clock: Clock) -> None:
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()
    data = clients()

    class Stamped(FedAvg):
        def aggregate_train(self, *args: Any, **more: Any) -> Any:
            found = super().aggregate_train(*args, **more)
            clock()
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


def with_fedjax(rounds: int, clock: Clock) -> None:
    import fedjax
    import haiku as hk
    import jax
    import numpy as np
    from fedjax.algorithms import fed_avg

    def net(batch: Any, **_: Any) -> Any:
        convolutions = [part for width in (32, 64) for part in (hk.Conv2D(width, 3, padding="VALID"), jax.nn.relu)]
        dense = [hk.Flatten(), hk.Linear(128), jax.nn.relu, hk.Linear(10)]
        return hk.Sequential([*convolutions, hk.MaxPool(2, 2, "VALID"), *dense])(batch["x"])

    data = [{"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "y": y.astype(np.int32)} for x, y in arrays()]
    whole = hk.transform(net)
    first = {name: one[:1] for name, one in data[0].items()}
    model = fedjax.create_model_from_haiku(
        whole, first, lambda batch, said: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], said), {}
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, drop_remainder=False, seed=0),
    )
    state, draw = algorithm.init(model.init(jax.random.PRNGKey(0))), np.random.default_rng(0)
    sets = [fedjax.ClientDataset(one) for one in data]
    assert sum(leaf.size for leaf in jax.tree_util.tree_leaves(state.params)) == 1_626_442
    for number in range(rounds):
        chosen = draw.choice(CLIENTS, PER_ROUND, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(number), PER_ROUND)
        state, _ = algorithm.apply(state, [(b"%d" % k, sets[k], key) for k, key in zip(chosen, keys, strict=True)])
        jax.block_until_ready(state.params)
        clock()


FRAMEWORKS: dict[str, Callable[[int, Clock], None]] = {
    **{"torso": with_torso, "pfl": with_pfl, "flwr": with_flower, "fedjax": with_fedjax}
}
# FedJAX 0.0.17 calls jax.tree_map, which later versions of JAX do not have; that JAX wants an older SciPy and NumPy
FEDJAX = ("fedjax==0.0.17", "jax[cpu]==0.4.25", "dm-haiku<0.0.13", "optax<0.2.3", "numpy<2", "scipy<1.13")
NEEDS = {"pfl": ("pfl==0.6.0",), "flwr": ("flwr[simulation]",), "fedjax": FEDJAX}
ALSO = {"torso": ("torch",), "pfl": ("torch",), "flwr": ("ray", "torch"), "fedjax": ("jax", "dm-haiku")}
ONE_THREAD = {
    "pfl": {"OMP_NUM_THREADS": "1"},
    "fedjax": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"},
}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def set_up(folder: Path) -> None:
    """Make an environment for each of the others. torch is installed first, so that all use Torso's version."""
    for name, packages in NEEDS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            venv.create(folder / name, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        pin = folder / "pin.txt"
        pin.write_text("")
        if name != "fedjax":
            subprocess.run([*install, TORCH], check=True)
            code = "from importlib.metadata import version; print(version('torch'))"
            found = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
            pin.write_text(f"torch=={found.strip()}\n")
        subprocess.run([*install, "-c", str(pin), *packages], check=True)


def child(name: str, rounds: int, envs: Path | None, threads: int) -> dict[str, Any]:
    """Run one framework in its own process."""
    python = Path(sys.executable) if name == "torso" or envs is None else envs / name / "bin" / "python"
    if not python.exists():
        return {"why": f"{python} is not there: --setup FOLDER makes it"}
    free = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "") if name == "torso" else ""}
    more = {
        MARK: f"{os.getpid()}-{time.monotonic_ns()}",
        **QUIET,
        **path,
        **(ONE_THREAD.get(name, {}) if threads == 1 else {}),
    }
    words = [str(python), __file__, "--child", name, "--rounds", str(rounds)]
    done = subprocess.run(words, env={**free, **more}, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not found:
        return {"why": "\n".join(done.stderr.strip().splitlines()[-12:])}
    return dict(json.loads(found[-1]))


def measure(name: str, rounds: int) -> None:
    """Measure, in the process of a framework."""
    clock = Clock(rounds + WARM)
    FRAMEWORKS[name](rounds + WARM, clock)
    versions = {}
    for package in (name, *ALSO[name]):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "?"
    print("\n" + json.dumps({**clock.found(), "versions": versions}), flush=True)


def row_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    if why := [one["why"] for one in found if "why" in one]:
        return {"why": why[0]}
    return {
        "versions": found[0]["versions"],
        "wall_ms_a_round": [round(1000 * median(one["seconds"]), 1) for one in found],
        "cpu_ms_a_round": [round(1000 * one["cpu"], 1) for one in found],
        "images_per_cpu_second": round(median(PER_ROUND * SAMPLES / one["cpu"] for one in found)),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| framework | versions | CPU ms a round | wall ms a round | images a CPU second |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "why" in row:
            lines.append(f"| {name} | not measured: {row['why'].splitlines()[-1]} | | | |")
            continue
        versions = ", ".join(f"{package} {found}" for package, found in row["versions"].items())
        cpu, wall = (_range(row[f"{which}_ms_a_round"]) for which in ("cpu", "wall"))
        lines.append(f"| {name} | {versions} | {cpu} | {wall} | {row['images_per_cpu_second']:,} |")
    return "\n".join(lines)


def _range(values: list[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--setup", type=Path, metavar="FOLDER", help="make the others' environments, and nothing else")
    parser.add_argument("--envs", type=Path, metavar="FOLDER", help="where they are; without it, in Torso's own")
    parser.add_argument("--threads", type=int, default=1, choices=(1, 2), help="of an operation, of pfl and fedjax")
    parser.add_argument("--only", nargs="+", default=list(FRAMEWORKS), choices=list(FRAMEWORKS))
    parser.add_argument("--out", type=Path, default=HERE / "side_by_side.json")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.setup:
        set_up(asked.setup)
        return
    if asked.child:
        measure(asked.child, asked.rounds)
        return
    found: dict[str, list[dict[str, Any]]] = {}
    load = round(os.getloadavg()[0], 1)
    for _ in range(asked.repeats):  # in turns, so that a busy minute hits all
        for name in asked.only:
            found.setdefault(name, []).append(child(name, asked.rounds, asked.envs, asked.threads))
            print(name, json.dumps(row_of(found[name][-1:])), flush=True)
    rows = {name: row_of(each) for name, each in found.items()}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "load_before": load}
    kept = {
        **{
            "machine": machine,
            "python": platform.python_version(),
            "rounds": asked.rounds,
            "n": asked.repeats,
            "threads": asked.threads,
        },
        "frameworks": rows,
    }
    asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
