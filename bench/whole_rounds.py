"""Whole rounds against steps alone, and uneven clients against equal ones: `python bench/whole_rounds.py`.

conv4 on random images of 32 × 32, FedAvg, batch 50, crop and mirror. `steps`: training steps of G stacked clients, as
`torso bench engine` takes them. `rounds`: a round of G participants with one epoch of 500 images each, from sampling to
the next state; `dirichlet` has as many images, with classes dealt by Dirichlet(α = 0.3), and counts real images alone.
Images per second, median of n rounds after a warm-up, with lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torso import Config
from torso.engine import engines
from torso.engine.bench import row, wait
from torso.precision import precision_of
from torso.runs.events import Listener, Stop
from torso.runs.job import data_of, device_named, simulate
from torso.runs.run import _Run

Row = dict[str, Any]


def settings(partition: str, clients: int, given: argparse.Namespace) -> Config:
    return Config(
        method="fedavg",
        data={
            "source": "synthetic",
            "clients": clients,
            "partition": partition,
            "augment": "crop-flip",
            **({"alpha": 0.3} if partition != "iid" else {}),
            "synthetic": {"samples": clients * given.samples, "test_samples": 100, "size": 32, "channels": 3},
        },
        model={"body": given.body},
        train={"rounds": 10**6, "local_epochs": 1, "fraction": 1.0, "batch_size": 50},
        measure={"every": 0, "names": ["initial"]},
        run={"engine": "batched", "device": given.device, "precision": given.precision, "clients_at_once": clients},
    )


def rounds(partition: str, clients: int, given: argparse.Namespace) -> Row:
    """Images per second of whole rounds in which everybody takes part."""
    config = settings(partition, clients, given)
    job = simulate(config, data_of(config))
    going, found = _Run(job, None, Listener(), Stop(), ""), []
    images = int(job.roster.sizes.sum())
    with engines["batched"](job.net, job.federation, config.run) as engine:
        for place in range(given.rounds + 5):
            began = time.perf_counter()
            going._round(engine)
            wait(job.device)
            if place >= 5:
                found.append(images / (time.perf_counter() - began))
    made = {
        "what": "rounds" if partition == "iid" else "dirichlet",
        "clients": clients,
        "largest": int(max(job.roster.sizes)),
    }
    return made | {
        "images_per_s": round(median(found)),
        "low": round(min(found)),
        "high": round(max(found)),
        "n": given.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", default="conv4")
    parser.add_argument("--clients", default="10,100")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = device_named(given.device)
    exact = precision_of(given.precision, device)
    rows: list[Row] = []
    for clients in map(int, given.clients.split(",")):
        alone = row(given.body, clients, 50, exact, device, "steps")
        both = [rounds(partition, clients, given) for partition in ("iid", "dirichlet-class")]
        for found, against in zip(both, (alone, both[0]), strict=True):
            found["ratio"] = round(found["images_per_s"] / against["images_per_s"], 3)  # to steps; to equal clients
        kept = ("what", "clients", "images_per_s", "low", "high", "n")
        rows += [{key: alone[key] for key in kept}, *both]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, CPU"
    machine = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    found = {"machine": machine, "body": given.body, "precision": exact, "samples": given.samples, "rows": rows}
    print(json.dumps(found))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
