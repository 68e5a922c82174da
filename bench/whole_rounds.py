"""Whole rounds against steps alone, and uneven clients against equal ones: `python bench/whole_rounds.py`.

conv4 on random images of 32 × 32, FedAvg, batch 50, crop and mirror. `steps`: training steps of G stacked clients, as
`torso bench engine` takes them. `rounds`: a round of G participants with one epoch of 500 images each, from sampling to
the next state; `dirichlet` has as many images, with classes dealt by Dirichlet(α = 0.3), and counts real images alone.
`pfl`: rounds of pfl-research's benchmark, 50 of 1,000 clients with five steps of batch 10 on random images.

Rounds are timed in blocks, since a round may begin before the last one is over. The device is waited for at the end of
a block. Images per second: the median of n blocks after a warm-up, with lowest and highest. `ms`: wall time of a round.
`host_ms`: time until the host has queued it. `cpu_ms`: CPU time of the process. `recordings`: of several steps, of one.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torso import Config
from torso.engine import engines
from torso.engine.bench import row, wait
from torso.precision import precision_of
from torso.report.pfl_bench import pfl_config
from torso.runs.devices import device_named
from torso.runs.job import data_of, simulate
from torso.runs.loop import Loop

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


def pfl(given: argparse.Namespace) -> Config:
    """As `torso bench pfl`, on random images and without evaluation."""
    config = pfl_config("synthetic", "", 10**6, given.precision, given.device, seed=0)
    return config.but("measure.every=0", "run.engine=batched")


def rounds(what: str, config: Config, given: argparse.Namespace) -> Row:
    """Images per second of whole rounds."""
    job = simulate(config, data_of(config))
    loop, made = Loop(job), list[tuple[float, ...]]()
    images = int(job.roster.sizes.sum() * config.train.fraction)
    with engines["batched"](job.net, job.federation, config.run) as engine:
        began = time.perf_counter()
        for place in range(-2, given.blocks):
            for _ in range(given.rounds if place == -2 else 1):
                loop.round(engine)
            if place == -2:
                warm = time.perf_counter() - began
            wait(job.device)
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(given.rounds):
                loop.round(engine)
            asked = time.perf_counter() - start
            wait(job.device)
            if place >= 0:
                made.append((time.perf_counter() - start, asked, time.process_time() - cpu))
        recorder = engine._workspace.context.recorder if engine._workspace else None
        kept = [] if recorder is None else [len(recorder._plays), len(recorder._recordings)]
        if given.profile and len(job.roster.sizes) != 100:
            _profile(f"{given.profile}_{what}_{config.run.precision}", lambda: loop.round(engine))
    walls, hosts, cpus = (sorted(1e3 * each / given.rounds for each in column) for column in zip(*made, strict=True))
    return {
        **{"what": what, "clients": len(job.roster.sizes), "largest": int(max(job.roster.sizes))},
        **{"images_per_s": round(1e3 * images / median(walls)), "low": round(1e3 * images / walls[-1])},
        **{"high": round(1e3 * images / walls[0]), "n": given.blocks, "warm_up_s": round(warm, 1)},
        **{"ms": round(median(walls), 2), "host_ms": round(median(hosts), 2), "cpu_ms": round(median(cpus), 2)},
        "recordings": kept,
    }


def _profile(name: str, play: Callable[[], None]) -> None:
    """What the host does in twenty rounds, and the device in three."""
    host = cProfile.Profile()
    host.enable()
    for _ in range(20):
        play()
    host.disable()
    with Path(f"{name}_host.txt").open("w", encoding="utf-8") as file:
        for order in ("tottime", "cumulative"):
            pstats.Stats(host, stream=file).sort_stats(order).print_stats(60)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as device:
        for _ in range(3):
            play()
        torch.cuda.synchronize()
    table = device.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=70)
    Path(f"{name}_kernels.txt").write_text(table, encoding="utf-8")


def measured(clients: int, given: argparse.Namespace) -> list[Row]:
    """Steps alone, rounds of equal clients and of uneven ones, with their ratios."""
    device = device_named(given.device)
    alone = row(given.body, clients, 50, precision_of(given.precision, device), device, "steps")
    kept = ("what", "clients", "images_per_s", "low", "high", "n")
    rows = [{key: alone[key] for key in kept}]
    for what, partition in (("rounds", "iid"), ("dirichlet", "dirichlet-class")):
        found = rounds(what, settings(partition, clients, given), given)
        found["ratio"] = round(found["images_per_s"] / rows[-1]["images_per_s"], 3)  # to steps; to equal clients
        rows.append(found)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", default="conv4")
    parser.add_argument("--clients", default="10,100")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10, help="of a block")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precisions", default="bf16,tf32")
    parser.add_argument("--no-pfl", action="store_true")
    parser.add_argument("--profile", default="", help="the beginning of the names of files for profiles")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = device_named(given.device)
    rows: list[Row] = []
    for precision in given.precisions.split(","):
        given.precision = precision
        works: list[Callable[[], list[Row]]] = [
            *(partial(measured, clients, given) for clients in map(int, given.clients.split(","))),
            *([] if given.no_pfl else [lambda: [rounds("pfl", pfl(given), given)]]),
        ]
        for work in works:
            try:
                found = work()
            except Exception as error:  # what else there is to measure is measured
                found = [{"what": "failed", "why": repr(error)}]
                traceback.print_exc()
            for each in found:
                rows.append({"precision": precision_of(given.precision, device), **each})
                print(rows[-1], flush=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, CPU"
    machine = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    result = {"machine": machine, "body": given.body, "samples": given.samples, "rows": rows}
    print(json.dumps(result))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
