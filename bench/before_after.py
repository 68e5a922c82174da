"""Speed of two versions of Torso: the same work in processes that take turns, each with its own source tree.

    python bench/before_after.py OLD/src NEW/src [--repeats 3] [--out FILE]

Rows: training steps of stacked clients (accelerator), whole rounds of several methods, and the evaluation of clients
after them. A figure is the median over processes. A ratio is new / old of the medians, with its range (slowest new
against fastest old to fastest new against slowest old). Above 1 the new version is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

Case = tuple[str, str, float, int]  # method, body, share of the clients in a round, rounds
ACCELERATOR: tuple[Case, ...] = (
    ("fedavg", "conv4", 1.0, 12),
    ("fedavg", "conv4", 0.1, 40),
    ("fedper", "conv4", 1.0, 12),
    ("scaffold", "conv4", 0.1, 40),
    ("ditto", "conv4", 0.1, 40),
    ("fedavg", "mobilenet", 0.1, 12),
)
CPU: tuple[Case, ...] = (("fedavg", "conv3", 0.2, 8), ("fedper", "conv3", 0.2, 8), ("scaffold", "conv3", 0.2, 8))


def one_process(turns: int = 3) -> dict[str, float]:
    """Measure every row in this process: images/s of rounds and of the evaluation, steps on an accelerator."""
    import torch

    import torso
    from torso.data import build
    from torso.runs.events import Listener

    fast = torch.cuda.is_available()
    clients, each, size = (100, 500, 32) if fast else (50, 60, 16)
    shape = {"samples": each * clients, "test_samples": 1000, "size": size, "channels": 3 if fast else 1}
    data = {"source": "synthetic", "clients": clients, "partition": "iid", "synthetic": shape}
    federation = build(torso.Config(data=data).data, 0, torch.device("cuda" if fast else "cpu"))
    seconds: dict[str, list[float]] = {}

    class Rounds(Listener):
        def __init__(self, name: str) -> None:
            self.name = name

        def round(self, round: Any, took: float, accuracy: Any) -> None:
            if round.round > 2:  # kernels are compiled and recorded
                seconds.setdefault(self.name, []).append(took / len(round.participants))

    for method, body, fraction, rounds in (ACCELERATOR if fast else CPU) * turns:
        name = f"{method} {body} {clients}×{each} f={fraction}"
        config = torso.Config(
            method=method,
            data=data,
            model={"body": body},
            train={"rounds": rounds, "fraction": fraction, "local_epochs": 1, "batch_size": 50},
            personalize={"epochs": 1},
            measure={"names": ["initial", "personalized"]},
            run={"precision": "bf16" if fast else "auto"},
        )
        result = torso.run(config, federation=federation, listener=Rounds(f"round: {name}"))
        seconds.setdefault(f"evaluation: {name}", []).append(result.seconds["measure"] / clients)
    found = {name: each / median(took) for name, took in sorted(seconds.items())}
    if fast:
        from torso.engine.bench import measure_engine

        rows = measure_engine(["conv4"], [10, 100], 50, "bf16", torch.device("cuda"))["rows"]
        found |= {f"steps: {r['body']} {r['what']} {r['clients']}": r["images_per_s"] for r in rows}
    return found


def in_tree(source: Path) -> dict[str, float]:
    path = os.pathsep.join([str(source.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, __file__, "--here"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{source}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*", metavar="SRC", help="the old and the new source tree")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(one_process()))
        return
    import torch

    old, new = options.trees
    came: dict[Path, list[dict[str, float]]] = {old: [], new: []}
    for turn in range(options.repeats):
        for tree in (old, new) if turn % 2 == 0 else (new, old):  # who comes first has the cooler machine
            came[tree].append(in_tree(tree))
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    rows = {}
    for name in came[old][0]:
        before, after = ([process[name] for process in came[tree]] for tree in (old, new))
        rows[name] = {
            "before": round(median(before)),
            "after": round(median(after)),
            "ratio": round(median(after) / median(before), 3),
            "low": round(min(after) / max(before), 3),
            "high": round(max(after) / min(before), 3),
        }
        print(f"{name:50} {rows[name]}", flush=True)
    machine = {"device": device, "torch": torch.__version__, "python": platform.python_version(), "n": options.repeats}
    print(json.dumps(machine))
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "images_per_s": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
