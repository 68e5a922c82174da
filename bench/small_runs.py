"""CPU seconds of small runs, as tests have them: `python bench/small_runs.py OLD/src src --out bench/small_runs.json`.

A run on digits with five clients and two rounds, in memory and in a folder: the first run of a process, and runs from
the tenth on; the first run of a process with a module of the user as network; and a whole process, including the start
of Python and imports. Processes of the given versions take turns. CPU seconds hardly grow with the machine's load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

_CHILD = "--child"
_WARM, _RUNS = 9, 20
KINDS = ("in memory", "in a folder", "own module", "fedloge")


def child(kind: str) -> None:
    """Print the milliseconds of the process's runs, and of the whole process."""
    import torch
    from torch import nn

    import torso

    torch.set_num_threads(1)
    method = kind if kind == "fedloge" else "fedbabu"
    config = {
        "method": method,
        "data": {"source": "digits", "clients": 5, "partition": "shards", "shards": 4},
        "model": {"body": "mlp"},
        "train": {"rounds": 2, "fraction": 0.6, "local_epochs": 1, "batch_size": 20},
        "run": {"device": "cpu", "workers": 1},
    }
    mine = (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) if kind == "own module" else None
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_WARM + _RUNS if kind.startswith("in ") else 1):
            began = time.process_time()
            torso.run(config, Path(folder) / str(number) if kind == "in a folder" else None, model=mine)
            found.append(1e3 * (time.process_time() - began))
            if not number:
                whole = 1e3 * time.process_time()
    later = {"later": median(found[_WARM:])} if len(found) > _WARM else {}
    print(json.dumps({"first": found[0], **later, "process": whole}))


def once(source: str, kind: str) -> dict[str, float]:
    there = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, __file__, _CHILD, kind], env=there, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", help="folders that hold the package, of the versions to compare")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    import torch

    rows = []
    for kind in KINDS:
        met = [(source, once(source, kind)) for _ in range(given.repeats) for source in given.sources]
        for source in given.sources:
            mine = [found for where, found in met if where == source]
            for what in mine[0]:
                ms = sorted(found[what] for found in mine)
                rows.append({"run": kind, "what": what, "source": source, "ms": round(median(ms), 1)})
                rows[-1] |= {"low": round(ms[0], 1), "high": round(ms[-1], 1), "n": len(ms)}
                print(json.dumps(rows[-1]), flush=True)
    machine = {"device": f"{platform.machine()}, CPU", "torch": torch.__version__, "python": platform.python_version()}
    if given.out:
        given.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        child(sys.argv[2])
    else:
        main()
