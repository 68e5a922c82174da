"""The host's cost of a round in which clients do nothing: `python bench/round_host.py --out bench/round_host.json`.

The clients' step does nothing, the network has a few dozen parameters and nothing is recorded. What is left is
sampling, messages, dealing, sums, the store and the bookkeeping of the loop. All clients have taken part before and,
with FedPer, keep a head. Times are CPU seconds of the process in a round, median of n; the bound is 1 ms + 20 µs a
participant.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torso import Config
from torso.data.batches import Batch
from torso.engine import Engine, engines
from torso.learn.steps import Learner, Step, steps
from torso.nets.blocks import Dense
from torso.nets.bodies import bodies
from torso.nets.body import Body
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.runs.job import Simulation, data_of, simulate
from torso.runs.loop import Loop

Row = dict[str, Any]


@steps.register("nothing")
@dataclass(frozen=True)
class Nothing(Step):
    """A local step that reads no batch."""

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        pass


@bodies.register("tiny")
def tiny(channels: int, height: int, width: int) -> Body:
    """A body with one hidden layer of four units."""
    return Body([Dense(channels * height * width, 4)], 4)


def settings(method: str, clients: int, participants: int) -> Config:
    return Config(
        method={"name": method, "step": "nothing"},
        data={
            "source": "synthetic",
            "clients": clients,
            "partition": "iid",
            "synthetic": {"size": 2, "samples": 2 * clients, "test_samples": 10, "classes": 3},
        },
        model={"body": "tiny"},
        train={"rounds": 10**6, "local_epochs": 1, "fraction": participants / clients, "batch_size": 10},
        measure={"every": 0, "names": ["initial"]},
        run={"engine": "batched", "clients_at_once": participants, "device": "cpu"},
    )


def met_on_host(job: Simulation) -> State:
    """The state after many rounds: all clients have taken part, and have what the method keeps."""
    keeps = {name: job.model[name] for name in sorted(job.plan[0].keeps)}
    everybody = range(job.roster.clients)
    held = {k: ClientState(keeps) for k in everybody} if keeps else {}
    begun = State.begin(job.model, held)
    return replace(begun, server=replace(begun.server, met=frozenset(everybody)))


def measured(method: str, clients: int, participants: int, rounds: int, profile: str = "") -> Row:
    config = settings(method, clients, participants)
    job = simulate(config, data_of(config))
    loop = Loop(job)
    loop.state = met_on_host(job)
    with engines["batched"](job.net, job.federation, config.run) as engine:
        for _ in range(5):
            loop.round(engine)
        if profile:
            _profiled(loop, engine, rounds, profile)
        found = []
        for _ in range(rounds):
            began = time.process_time()
            loop.round(engine)
            found.append(1e3 * (time.process_time() - began))
    bound = 1 + 0.02 * participants
    return {
        "method": method,
        "clients": clients,
        "participants": participants,
        "ms": round(median(found), 3),
        "low": round(min(found), 3),
        "high": round(max(found), 3),
        "bound_ms": bound,
        "n": rounds,
    }


def _profiled(loop: Loop, engine: Engine, rounds: int, order: str) -> None:
    import cProfile
    import pstats

    with cProfile.Profile(time.process_time) as watched:
        for _ in range(rounds):
            loop.round(engine)
    pstats.Stats(watched).sort_stats(order).print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="fedavg,fedper")
    parser.add_argument("--clients", default="1000,100000")
    parser.add_argument("--participants", default="10,100,1000")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--profile", default="", help="also print a profile, ordered by tottime or cumtime")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method in given.methods.split(","):
        for clients in map(int, given.clients.split(",")):
            for participants in map(int, given.participants.split(",")):
                rows.append(measured(method, clients, participants, given.rounds, given.profile))
                print(json.dumps(rows[-1]), flush=True)
                gc.collect()
    machine = {"device": f"{platform.machine()}, CPU", "torch": torch.__version__, "python": platform.python_version()}
    if given.out:
        given.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
