"""Speed and memory on this machine, as ratios within one run: `make bench`.

The two sides of a comparison take turns, and their medians are compared, so that a busy machine slows both. The range
is from our slowest against their fastest to our fastest against their slowest. The bare loop is plain PyTorch: an
nn.Module in channels_last, torch.optim.SGD, all cores in every operation, batches ready in memory. Torso makes the same
steps with clients in parallel threads, and also makes the batches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from plain import NETWORKS
from torso import Config
from torso.data.batches import Shuffle
from torso.engine import OneByOne, Workspace
from torso.runs.job import Simulation, simulate
from torso.runs.run import run
from torso.runs.sampling import sample
from torso.runs.telling import tell, visit_of
from torso.server.state import ServerState

Figures = dict[str, Any]


def settings(body: str, samples: int, **run: Any) -> Config:
    """100 clients of `samples` images of 32 × 32 × 3, ten a round, batch 50, SGD with momentum."""
    return Config(
        method="fedavg",
        data={
            "source": "synthetic",
            "clients": 100,
            "partition": "iid",
            "augment": "crop-flip",
            "synthetic": {"samples": 100 * samples, "test_samples": 20 * samples, "size": 32, "channels": 3},
        },
        model={"body": body},
        train={"rounds": 10, "local_epochs": 1, "fraction": 0.1, "batch_size": 50},
        measure={"every": 10, "names": ["initial"]},
        run=run,
    )


def bare_loop(job: Simulation, clients: tuple[int, ...]) -> float:
    """Images per second of the hand-written loop over the same batches, which are made before the clock starts."""
    workspace = Workspace.at(job.net, job.federation)
    context = workspace.context
    batches = [
        (batch.inputs[0].contiguous(memory_format=torch.channels_last), batch.labels[0])
        for client in clients
        for batch in workspace.train_deck([client]).shuffled(
            50, context.lens, Shuffle(0, "train", 1), 0, context.change
        )
    ]
    net = NETWORKS[job.config.model.body]().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.set_num_threads(os.cpu_count() or 1)
    net.train()
    began = time.perf_counter()
    for images, labels in batches:
        optimiser.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimiser.step()
    return sum(len(labels) for _, labels in batches) / (time.perf_counter() - began)


def torso_loop(job: Simulation, clients: tuple[int, ...]) -> float:
    """Images per second of a round's visits: the same steps, batches and augmentation made on the way."""
    stage = job.plan[0]
    visit = visit_of(stage, tell(stage, ServerState(job.model), job.roster, clients, 1, seed=0), seed=0)
    with OneByOne(job.net, job.federation) as engine:
        began = time.perf_counter()
        for _ in engine.map(visit, clients):
            pass
        seconds = time.perf_counter() - began
    return int(job.federation.train.sizes_of(clients).sum()) / seconds


def whole_run(job: Simulation, clients: tuple[int, ...]) -> float:
    """Training images per second of a whole run: sampling, augmentation, aggregation, evaluation every ten rounds."""
    began = time.perf_counter()
    result = run(job.config, federation=job.federation)
    seconds = time.perf_counter() - began
    return result.cost.forward_passes / 3 / seconds


SIDES = {"bare": bare_loop, "local training": torso_loop, "whole run": whole_run}


def one_side(side: str, body: str, samples: int) -> float:
    """Print the rate after a pass to warm up; for one side in its own process."""
    job = simulate(settings(body, samples))
    clients = sample(job.roster, 0.1, 0, 1)
    if side != "whole run":
        SIDES[side](job, clients)
    return SIDES[side](job, clients)


def training(body: str, samples: int, repeats: int) -> list[Figures]:
    """Both sides in turn, each in fresh processes, since Torso tunes the allocator of its process."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side, found in rates.items():
            command = [sys.executable, __file__, "--side", side, "--body", body, "--samples", str(samples)]
            found.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    bare = rates.pop("bare")
    return [
        {
            "what": f"{body}: {side}",
            "ours": median(found),
            "bare": median(bare),
            "unit": "images/s",
            "ratio": median(found) / median(bare),
            "low": min(found) / max(bare),
            "high": max(found) / min(bare),
            "n": repeats,
        }
        for side, found in rates.items()
    ]


CROWD = """
import json, resource, sys, time
from torso import Config
from torso.data.batches import Shuffle
from torso.runs.events import Listener
from torso.runs.run import run

class Clock(Listener):
    seconds = []
    def round(self, round, seconds, accuracy):
        self.seconds.append(seconds)

clients = int(sys.argv[1])
config = Config(method="fedper", data={"source": "synthetic", "clients": clients, "partition": "iid",
    "synthetic": {"samples": 10 * clients, "test_samples": 1000, "size": 4}},
    train={"rounds": 40, "fraction": 10 / clients, "local_epochs": 2}, measure={"names": ["generic"]}, run={"seed": 0})
clock = Clock()
result = run(config, listener=clock)
print(json.dumps({"round": sorted(clock.seconds[5:])[len(clock.seconds[5:]) // 2],
    "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, "status": result.status}))
"""


def crowd() -> list[Figures]:
    """Ten participants a round out of a thousand and out of a million registered clients (FedPer: private heads)."""
    found = {}
    for clients in (1_000, 1_000_000):
        out = subprocess.run([sys.executable, "-c", CROWD, str(clients)], capture_output=True, text=True, check=True)
        found[clients] = json.loads(out.stdout)
    few, many = found[1_000], found[1_000_000]
    return [
        {
            "what": "round of 10 clients, 1,000,000 registered against 1,000",
            "ours": many["round"] * 1e3,
            "bare": few["round"] * 1e3,
            "unit": "ms",
            "ratio": many["round"] / few["round"],
            "n": 35,
        },
        {"what": "peak memory, 1,000,000 registered", "ours": many["gb"], "bare": few["gb"], "unit": "GB", "n": 1},
    ]


def starts(repeats: int = 5) -> list[Figures]:
    """Wall-clock of `import torso` and `torso --help` in fresh processes."""
    commands = {
        "import torso": ["-c", "import torso"],
        "torso --help": ["-m", "torso", "--help"],
        "python": ["-c", "pass"],
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, arguments in commands.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            took[name].append(time.perf_counter() - began)
    empty = median(took.pop("python"))
    return [
        {"what": name, "ours": median(seconds), "bare": empty, "unit": "s", "n": repeats}
        for name, seconds in took.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=SIDES, help="measure one side in this process and print its rate")
    parser.add_argument("--body", default="conv4")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.side:
        print(one_side(options.side, options.body, options.samples))
        return
    figures = starts() + crowd() + training("conv4", 500, options.repeats) + training("mobilenet", 250, options.repeats)
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peak_gb_of_this_process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }
    report = {"machine": machine, "figures": figures}
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(report))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for row in figures:
        ratio = f"ratio {row['ratio']:.2f}" if "ratio" in row else ""
        ratio += f" ({row['low']:.2f} to {row['high']:.2f})" if "low" in row else ""
        sides = f"{row['ours']:9.2f} against {row['bare']:9.2f} {row['unit']:9}"
        print(f"{row['what']:58} {sides} n={row['n']} {ratio}")


if __name__ == "__main__":
    main()
