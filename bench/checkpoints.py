"""The cost of a checkpoint if clients keep models: writing what has changed since the last one, against writing all.

    python bench/checkpoints.py [--body conv4] [--clients 100] [--fraction 0.1] [--rounds 40]

Each client keeps a body (as in LG-FedAvg). A round changes the bodies of its participants, and a checkpoint follows
every round. Nothing is trained. Bytes are of tensors, including those that are written again when a file is mostly out
of date. Seconds are medians; the two ways take turns in this process.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from torso import Config
from torso.nets import part_names
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.results.checkpoint import Checkpoints
from torso.runs.job import simulate
from torso.runs.sampling import sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", default="conv4")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    shape = {"samples": options.clients, "test_samples": 10, "size": 32, "channels": 3}
    data = {"source": "synthetic", "clients": options.clients, "partition": "iid", "synthetic": shape}
    job = simulate(Config(data=data, model={"body": options.body}, run={"device": "cpu"}))
    body = part_names(job.net, "body")

    def trained() -> ClientState:
        return ClientState(kept={name: job.model[name].clone() for name in body})

    state = State.begin(job.model, {k: trained() for k in range(options.clients)})
    took: dict[str, list[float]] = {"changes": [], "everything": []}
    with tempfile.TemporaryDirectory() as folder:
        changes, first, written = Checkpoints(Path(folder) / "changes", ""), 0, 0
        largest = 0
        for number in range(1, options.rounds + 1):
            met = {k: trained() for k in sample(job.roster, options.fraction, 0, number)}
            state = State(replace(state.server, round=number), state.clients.updated(met))
            everything = Checkpoints(Path(folder) / "everything", "")
            for name, checkpoints in (("changes", changes), ("everything", everything)):
                began = time.perf_counter()
                checkpoints.save(state)
                if number > 1:  # the first checkpoint is everything both ways
                    took[name].append(time.perf_counter() - began)
            written, first = written + everything.written, first or changes.written
            largest = max(largest, sum(path.stat().st_size for path in changes.folder.iterdir()))
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}; {options.body}, {options.clients} clients")
    each, whole = (changes.written - first) / (options.rounds - 1), written / options.rounds
    sizes = f"{each / 1e6:.1f} MB against {whole / 1e6:.1f} MB, ratio {each / whole:.3f}"
    print(f"a checkpoint: {sizes}, n={options.rounds - 1}")
    fast, slow = took["changes"], took["everything"]
    ratio = f"{median(fast) / median(slow):.2f} ({min(fast) / max(slow):.2f} to {max(fast) / min(slow):.2f})"
    print(f"seconds: {median(fast):.3f} against {median(slow):.3f}, ratio {ratio}")
    print(f"on disk, at most: {largest / 1e6:.1f} MB, {largest / whole:.2f} times one whole checkpoint")


if __name__ == "__main__":
    main()
