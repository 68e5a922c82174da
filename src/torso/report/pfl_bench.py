"""The benchmark of pfl-research (Granqvist et al. 2024), with its network and dropout.

CIFAR-10; 1,000 clients of 50 images, 50 clients a round; one local epoch in batches of 10 at learning rate 0.1; FedAvg;
1,500 rounds; accuracy on the whole test set every 10 rounds.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from torso.config import Config
from torso.precision import precision_of
from torso.runs.devices import device_named
from torso.runs.events import ForwardingListener, Listener
from torso.runs.job import data_of
from torso.runs.run import run

if TYPE_CHECKING:
    from torso.measure import Accuracy
    from torso.runs.events import Stop
    from torso.runs.rounds import Round

Row = dict[str, Any]
CLIENTS, SAMPLES = 1000, 50
_FIRST = 12  # rounds that may compile or record something: those until just after the first measurement


def pfl_config(source: str, root: str, rounds: int, precision: str, device: str, seed: int) -> Config:
    """The config of the benchmark. `source`: cifar10, or synthetic images of the same size to measure only the time."""
    made = {"samples": CLIENTS * SAMPLES, "test_samples": 1000, "size": 32, "channels": 3}
    return Config(
        method="fedavg",
        data={
            "source": source,
            "root": root,
            "clients": CLIENTS,
            "partition": "iid",
            "augment": "none",
            **({"synthetic": made} if source == "synthetic" else {}),
        },
        model={"body": "pfl-cnn"},
        train={
            "rounds": rounds,
            "fraction": 50 / CLIENTS,
            "local_epochs": 1,
            "batch_size": 10,
            "lr": 0.1,
            "momentum": 0.0,
            "weight_decay": 0.0,
            "schedule": "const",
        },
        measure={"every": 10, "during": ["generic"], "names": ["generic"]},
        run={"seed": seed, "device": device, "precision": precision},
    )


def measure_pfl(config: Config, listener: Listener | None = None, stop: Stop | None = None) -> Row:
    """Run the benchmark and return what `torso bench pfl` prints: seconds of training, measuring and the process.

    `imports_s`: time of the process before this function was called. `recording_s`: extra training time of the first
    rounds, which compile and record. `other_s`: time of the process that no other column counts."""
    imports, began = process_seconds(), time.perf_counter()
    federation = data_of(config)
    data = time.perf_counter() - began
    rounds = _Rounds(listener or Listener())
    result = run(config, federation=federation, listener=rounds, stop=stop)
    device, process = device_named(config.run.device), process_seconds()
    found = result.accuracy.get("generic")
    spent = result.seconds
    return {
        "machine": _machine(device),
        "precision": precision_of(config.run.precision, device),
        "source": config.data.source,
        "rounds": result.rounds,
        "status": result.status,
        "imports_s": round(imports, 2),
        "data_s": round(data, 2),
        "training_s": round(spent["train"], 2),
        "recording_s": round(rounds.start(), 2),
        "ms_a_usual_round": round(1e3 * rounds.usual(), 2),
        "ms_a_round": round(1e3 * spent["train"] / max(result.rounds, 1), 2),
        "measuring_s": round(spent["measure"], 2),
        "other_s": round(process - imports - data - spent["train"] - spent["measure"], 2),
        "process_s": round(process, 2),
        "accuracy": None if found is None else round(found.mean, 2),
        "n": 1,
    }


class _Rounds(ForwardingListener):
    """A listener that notes how long each round took."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.seconds: list[float] = []

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.seconds.append(seconds)
        super().round(round, seconds, accuracy)

    def usual(self) -> float:
        """Seconds of a usual round: the median."""
        return median(self.seconds) if self.seconds else 0.0

    def start(self) -> float:
        """Seconds by which the first rounds were longer than usual ones."""
        return sum(max(seconds - self.usual(), 0.0) for seconds in self.seconds[:_FIRST])


def _machine(device: torch.device) -> Row:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, CPU"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"device": name, "cores": os.cpu_count(), **versions}


def process_seconds() -> float:
    """Seconds since this process began. If the system does not tell, its CPU seconds."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            began = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
