"""Seconds from the start of Python to the first training step, and where they go: `python bench/start.py --data FILE`.

A process reads the packed CIFAR-10, deals it to 100 clients, builds conv4 and ends when the first local epoch would
begin. `first` has an empty cache folder, `second` the folder that the first process has left. `cpu` is the CPU seconds
of all threads, which a busy machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

_CHILD = "--child"


def child(data: str, device: str) -> None:
    """Print the time at a few places, and end at the first step."""
    marks: dict[str, tuple[float, float]] = {}

    def mark(what: str) -> None:
        marks[what] = time.time() - float(os.environ["BENCH_BEGAN"]), sum(os.times()[:2])

    import torch  # noqa: F401

    mark("torch")
    from torso.config import Config
    from torso.learn.steps import Plain
    from torso.runs import run as runs

    mark("torso")
    config = Config(
        method="fedbabu",
        data={"source": "cifar10", "root": data, "clients": 100, "partition": "shards", "shards": 5},
        model={"body": "conv4"},
        train={"rounds": 1, "fraction": 0.1, "local_epochs": 1, "batch_size": 50},
        run={"device": device},
    )
    data_of = runs.data_of

    def loaded(*given: Any) -> Any:
        mark("config")
        found = data_of(*given)
        mark("data")
        return found

    one = threading.Lock()  # the first of the threads says it, and the process ends

    def ended(*_: Any) -> None:
        one.acquire()
        mark("first step")
        print(json.dumps(marks), flush=True)
        os._exit(0)

    runs.data_of = loaded
    Plain.epoch = ended  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        runs.run(config, Path(folder) / "run")


def once(data: str, device: str, cache: str) -> dict[str, tuple[float, float]]:
    there = {**os.environ, "TORSO_CACHE": cache, "BENCH_BEGAN": str(time.time())}
    asked = [sys.executable, __file__, _CHILD, "--data", data, "--device", device]
    said = subprocess.run(asked, env=there, check=True, capture_output=True, text=True).stdout
    found: dict[str, tuple[float, float]] = json.loads(said.splitlines()[-1])
    return found


def summary(runs: list[dict[str, tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds from the start of the process to each place, with the range of the wall's."""
    return {
        place: {
            "wall_s": round(median(run[place][0] for run in runs), 2),
            "low": round(min(run[place][0] for run in runs), 2),
            "high": round(max(run[place][0] for run in runs), 2),
            "cpu_s": round(median(run[place][1] for run in runs), 2),
        }
        for place in runs[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="cifar10_jpeg.npz, or the folder that holds CIFAR-10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument(_CHILD, action="store_true", dest="child")
    given = parser.parse_args()
    if given.child:
        child(given.data, given.device)
        return
    import torch

    first, second = [], []
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as cache:
            first.append(once(given.data, given.device, cache))
            second.append(once(given.data, given.device, cache))
    place = torch.cuda.get_device_name() if given.device.startswith("cuda") else f"{platform.machine()}, CPU"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    machine = {"device": place, "cores": os.cpu_count(), **versions}
    found = {"machine": machine, "n": given.repeats, "first": summary(first), "second": summary(second)}
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
