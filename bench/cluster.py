"""The cost of a cluster: a round on two workers with one thread each against one process, and the driver's own work.

1. Rounds with more and more training, against one process with one thread and with two: when do two workers break even?
2. Rounds whose local step does nothing, so only the communication is left: the driver's seconds (without waiting) by
   number of clients, by megabytes of the model, by megabytes of what clients keep. Uploads come client by client, so
   the received megabytes grow with the clients, and `--most` bounds their number.

The sides of a comparison run in turn in this process after a pass to warm up; a ratio is that of medians. `--out FILE`
keeps the figures as JSON for bench/scale.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ray
import torch

from torso import Config
from torso.data.batches import Batch
from torso.engine import Engine, OneByOne, engines
from torso.engine.cluster import Cluster
from torso.learn.steps import Learner, Step, steps
from torso.methods import methods
from torso.personal.state import State
from torso.personal.store import KINDS
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import play_round
from torso.server.state import bytes_of

Row = dict[str, Any]


@steps.register("nothing")
@dataclass(frozen=True)
class Nothing(Step):
    """A local step that does nothing."""

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None: ...


def job_of(
    method: str, body: str, clients: int, each: int = 1, size: int = 8, epochs: int = 1, idle: bool = True
) -> Simulation:
    """A job in which all clients take part, with `each` synthetic images for each client. `idle`: their
    step does nothing."""
    shape = {"samples": each * clients, "test_samples": 10, "size": size, "channels": 3 if size == 32 else 1}
    chosen = methods[method].but(step=Nothing()) if idle else methods[method]
    return simulate(
        Config(
            method=chosen,
            data={"source": "synthetic", "clients": clients, "partition": "iid", "synthetic": shape},
            model={"body": body},
            train={"fraction": 1.0, "local_epochs": epochs, "batch_size": 50, "rounds": 50},
            run={
                "engine": "ray",
                "workers": 1,
                "clients_at_once": 100 if idle and size == 8 else 1,
                "ray": {"workers": 2},
            },
        )
    )


@contextmanager
def on_cluster(job: Simulation) -> Iterator[Cluster]:
    place = engines["ray"](job.net, job.federation, job.config.run)
    assert isinstance(place, Cluster)
    with place as engine:
        yield engine


def in_turn(repeats: int, sides: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if repeat:
                took[name].append(time.perf_counter() - began)
    return took


def against_one_process(body: str, clients: int, each: int, size: int, epochs: int, repeats: int) -> Row:
    job = job_of("fedavg", body, clients, each, size, epochs, idle=False)

    def once(engine: Engine) -> Callable[[], object]:
        return lambda: play_round(job.plan[0], State.begin(job.model), job.roster, engine, 0)

    with (
        on_cluster(job) as two,
        OneByOne(job.net, job.federation, 1) as alone,
        OneByOne(job.net, job.federation, 2) as pair,
    ):
        took = in_turn(repeats, {"workers": once(two), "one thread": once(alone), "two threads": once(pair)})
    middle = {name: median(found) for name, found in took.items()}
    return {
        "body": body,
        "clients": clients,
        "steps": clients * epochs * -(-each // 50),
        **{f"{name} ms": round(1000 * value, 1) for name, value in middle.items()},
        "against one thread": round(middle["workers"] / middle["one thread"], 2),
        "against two threads": round(middle["workers"] / middle["two threads"], 2),
        "low": round(min(took["workers"]) / max(took["two threads"]), 2),
        "high": round(max(took["workers"]) / min(took["two threads"]), 2),
        "n": repeats,
    }


def of_the_driver(method: str, body: str, clients: int, repeats: int, size: int = 8) -> Row:
    """Rounds in which nothing is learned: seconds of the whole, of them the driver's, megabytes there and back; and the
    seconds of the same round in this process with two threads."""
    job = job_of(method, body, clients, size=size)
    found: list[tuple[float, ...]] = []
    at_once = job.config.run.clients_at_once
    with on_cluster(job) as engine, OneByOne(job.net, job.federation, 2, at_once) as here:
        state = alone = State.begin(job.model)
        for repeat in range(repeats + 1):
            before, began = (engine.waited, engine.bytes_out, engine.bytes_in), time.perf_counter()
            state, _ = play_round(job.plan[0], state, job.roster, engine, 0)
            took = time.perf_counter() - began
            own = took - (engine.waited - before[0])
            moved = [(engine.bytes_out - before[1]) / 1e6, (engine.bytes_in - before[2]) / 1e6]
            began = time.perf_counter()
            alone, _ = play_round(job.plan[0], alone, job.roster, here, 0)
            if repeat:
                found.append((took, own, *moved, time.perf_counter() - began))
    held = state.clients.here()  # the driver has had handles so far
    kept = sum(bytes_of(getattr(held[client], kind)) for client in held for kind in KINDS)
    whole, own, out, back, one = (median(column) for column in zip(*found, strict=True))
    return {
        "method": method,
        "body": body,
        "clients": clients,
        "model MB": round(bytes_of(job.model) / 1e6, 3),
        "kept MB": round(kept / 1e6, 3),
        "round s": round(whole, 4),
        "one process s": round(one, 4),
        "ratio": round(whole / one, 2),
        "driver s": round(own, 4),
        "driver low": round(min(row[1] for row in found), 4),
        "driver high": round(max(row[1] for row in found), 4),
        "MB out": round(out, 3),
        "MB in": round(back, 3),
        "n": repeats,
    }


def costs(rows: list[Row]) -> Row:
    """The driver's seconds for a round, a client, a megabyte of the model and worker, a megabyte that clients keep."""

    def row(method: str, body: str, clients: int) -> Row:
        return next(r for r in rows if (r["method"], r["body"], r["clients"]) == (method, body, clients))

    def ends(method: str) -> tuple[Row, Row]:
        """Of the fewest clients and of the most."""
        found = [r for r in rows if (r["method"], r["body"]) == (method, "mlp")]
        return min(found, key=lambda r: r["clients"]), max(found, key=lambda r: r["clients"])

    (few, many), (heads, more) = ends("fedavg"), ends("fedper")
    light, heavy = row("fedavg", "conv4", 2), row("fedavg", "resnet18", 2)
    own = row("ditto", "conv4", 100)
    plain = (many["driver s"] - few["driver s"]) / (many["clients"] - few["clients"])
    keeping = (more["driver s"] - heads["driver s"]) / (more["clients"] - heads["clients"])
    megabyte = (heavy["driver s"] - light["driver s"]) / (2 * (heavy["model MB"] - light["model MB"]))
    return {
        "round_s": light["driver s"],
        "client_s": plain,
        "keeping_client_s": keeping,
        "model_MB_and_worker_s": megabyte,
        "kept_MB_s": max(own["driver s"] - light["driver s"], 0.0) / own["kept MB"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=10_000, help="clients: 10,000 uploads of mlp are 2.2 GB")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, log_to_driver=False)
    machine = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
    }
    print(json.dumps(machine))
    rounds, driver = [], []
    for body, clients, each, size, epochs in (
        *(("mlp", clients, 50, 8, 1) for clients in (2, 5, 10, 20)),
        *(("mlp", 20, 50, 8, epochs) for epochs in (4, 16, 64)),
        ("conv4", 10, 100, 32, 1),
    ):
        rounds.append(against_one_process(body, clients, each, size, epochs, options.repeats))
        print(json.dumps(rounds[-1]), flush=True)
    for method, body, clients, size in (
        ("fedavg", "conv4", 2, 32),
        ("fedavg", "mobilenet", 2, 32),
        ("fedavg", "resnet18", 2, 32),
        *(("fedavg", "mlp", clients, 8) for clients in (100, 1000, 10_000, 100_000) if clients <= options.most),
        *(("fedper", "mlp", clients, 8) for clients in (100, 1000, 10_000) if clients <= options.most),
        ("ditto", "conv4", 100, 32),
    ):
        driver.append(of_the_driver(method, body, clients, options.repeats if clients < 50_000 else 3, size))
        print(json.dumps(driver[-1]), flush=True)
    found = {"machine": machine, "rounds": rounds, "driver": driver, "costs": costs(driver)}
    print(json.dumps(found["costs"]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
