"""Head-only fine-tuning on features computed once, against the same through the whole network, as a ratio.

Both sides run in turn in this process, after one pass to warm up; a ratio is that of medians, its range the slowest
against the fastest. `python bench/features.py [--body vgg11] [--samples 200] [--epochs 5] [--clients 4]`.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from statistics import median
from unittest.mock import patch

import torch

from torso import Config
from torso.data.batches import Shuffle
from torso.engine import Desk
from torso.learn import local
from torso.learn.local import Course, Habits, learn
from torso.learn.phases import Phase, lessons
from torso.runs.run import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", default="vgg11")
    parser.add_argument("--samples", type=int, default=200, help="of a client")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    size = {"samples": options.samples * options.clients, "test_samples": 100, "size": 32, "channels": 3}
    job = prepare(
        Config(
            data={"source": "synthetic", "clients": options.clients, "partition": "iid", "synthetic": size},
            model={"body": options.body, "norm": "running"},
            run={"device": "cpu"},
        )
    )
    torch.set_num_threads(1)
    desk = Desk.at(job.net, job.federation)
    plan = lessons(job.net, (Phase("head"),), options.epochs, 0.01)

    def seconds(client: int, once: bool) -> float:
        course = Course(desk.room, desk.train_deck([client]), plan, Habits(50, 0.9), Shuffle(0, "bench", 0))
        start = desk.models(job.model, {}, [client])
        began = time.perf_counter()
        if once:
            learn(course, start)
        else:
            with patch.object(local, "are_fixed", lambda *_: False):
                learn(course, start)
        return time.perf_counter() - began

    took: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(options.repeats + 1):
        for once, found in took.items():
            spent = sum(seconds(client, once) for client in range(options.clients))
            if repeat:
                found.append(spent)
    once, whole = took[True], took[False]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(
        f"{options.body}, {options.clients} clients of {options.samples} samples, {options.epochs} epochs of the head: "
        f"{median(once):.3f} s against {median(whole):.3f} s, ratio {median(whole) / median(once):.2f} "
        f"({min(whole) / max(once):.2f} to {max(whole) / min(once):.2f}), n={options.repeats}"
    )


if __name__ == "__main__":
    main()
