"""Rounds of a network so small that Python bounds it: `python bench/small_nets.py --out bench/small_nets.json`.

mlp on scikit-learn's 8×8 digits, 50 clients of two classes, ten a round, one epoch in batches of ten, one worker. CPU
milliseconds of the process in a round, median of n after a warm-up, with the lowest, by `run.clients_at_once`; 0 is the
default, a stack where it keeps the bits.
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
from torso.runs.job import data_of, simulate
from torso.runs.loop import Loop


def measured(at_once: int, rounds: int) -> dict[str, Any]:
    config = Config(
        method="fedavg",
        data={"source": "digits", "clients": 50, "partition": "shards", "shards": 2},
        model={"body": "mlp"},
        train={"rounds": 10**6, "local_epochs": 1, "fraction": 0.2, "batch_size": 10},
        measure={"every": 0, "names": ["initial"]},
        run={"engine": "one-by-one", "device": "cpu", "workers": 1, "clients_at_once": at_once},
    )
    job = simulate(config, data_of(config))
    loop, found = Loop(job), []
    with engines["one-by-one"](job.net, job.federation, config.run) as engine:
        for _ in range(rounds + 5):
            began = time.process_time()
            loop.round(engine)
            found.append(1e3 * (time.process_time() - began))
    kept = found[5:]
    return {"clients_at_once": at_once, "ms": round(median(kept), 2), "low": round(min(kept), 2), "n": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", default="0,1,10")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = [measured(at_once, given.rounds) for at_once in map(int, given.at_once.split(","))]
    machine = {"device": f"{platform.machine()}, CPU", "torch": torch.__version__, "python": platform.python_version()}
    found = {"machine": machine, "rows": rows}
    print(json.dumps(found))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
