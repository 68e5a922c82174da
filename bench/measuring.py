"""The cost of measuring, as ratios within one run on one machine.

1. Head-only fine-tuning on features computed once, against the same through the whole network.
2. The usual evaluation of clients (initial, personalised after 5 epochs, without head, generic), against the
   fine-tuning epochs that it contains.

The two sides take turns in this process, after one pass to warm up. A ratio is that of medians; its range is from the
fastest against the slowest to the slowest against the fastest.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from unittest.mock import patch

import torch

from torso import Config
from torso.data.batches import Shuffle
from torso.engine import OneByOne, Workspace
from torso.engine.batched import Batched
from torso.engine.bench import wait
from torso.learn import local
from torso.learn.local import learn
from torso.learn.phases import LocalPhase, Phase, local_phases
from torso.learn.steps import LocalSettings
from torso.learn.task import LocalTask
from torso.measure import Evaluation, evaluate
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate


@dataclass(frozen=True)
class Tuning:
    """Work for an engine: fine-tune a group of clients and evaluate nothing."""

    job: Simulation
    plan: tuple[LocalPhase, ...]
    settings: LocalSettings

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> None:
        task = LocalTask(
            workspace.context, workspace.train_deck(clients), self.plan, self.settings, Shuffle(0, "bench", 0)
        )
        learn(task, workspace.models(self.job.model, clients, kept=False))


def job_of(
    body: str, clients: int, samples: int, norm: str, device: str = "cpu", precision: str = "auto"
) -> Simulation:
    """A job with clients of `samples` training images of 32 × 32 × 3 and a fifth as many test images, not augmented."""
    size = {"samples": samples * clients, "test_samples": samples * clients // 5, "size": 32, "channels": 3}
    data = {"source": "synthetic", "clients": clients, "partition": "iid", "synthetic": size}
    return simulate(
        Config(data=data, model={"body": body, "norm": norm}, run={"device": device, "precision": precision})
    )


def in_turn(repeats: int, one: Callable[[], object], other: Callable[[], object]) -> tuple[list[float], list[float]]:
    took: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for side, found in zip((one, other), took, strict=True):
            began = time.perf_counter()
            side()
            if repeat:
                found.append(time.perf_counter() - began)
    return took


def told(what: str, one: list[float], other: list[float]) -> None:
    ratio = f"{median(one) / median(other):.2f} ({min(one) / max(other):.2f} to {max(one) / min(other):.2f})"
    print(f"{what}: {median(one):.2f} s against {median(other):.2f} s, ratio {ratio}, n={len(one)}")


def features_once(body: str, clients: int, samples: int, repeats: int) -> None:
    job = job_of(body, clients, samples, "running")
    work = Tuning(job, local_phases(job.net, (Phase("head"),), 5, 0.01), LocalSettings(50, 0.9))
    with OneByOne(job.net, job.federation) as engine:

        def walk() -> None:
            list(engine.map(work, range(clients)))

        def through_the_body() -> None:
            with patch.object(local, "are_fixed", lambda *_: False):
                walk()

        told(
            f"{body}, head for 5 epochs, whole network against features once", *in_turn(repeats, through_the_body, walk)
        )


def evaluation(
    body: str, clients: int, samples: int, repeats: int, device: str, precision: str, profiled: str = ""
) -> None:
    job = job_of(body, clients, samples, "default", device, precision)
    state = State.begin(job.model)
    how: Evaluation = evaluation_of(job, job.plan[0], state)
    work = Tuning(job, how.finetune(5), how.settings)
    stacks = job.device.type == "cuda"
    with Batched(job.net, job.federation, 0, precision) if stacks else OneByOne(job.net, job.federation) as engine:

        def measure() -> None:
            evaluate(engine, job.roster, job.config.measure.names, state, how, range(clients))
            wait(job.device)

        def tune() -> None:
            list(engine.map(work, range(clients)))
            wait(job.device)

        told(f"{body}, evaluation of {clients} clients against the epochs in it", *in_turn(repeats, measure, tune))
        for names in (["initial"], ["without_head"], ["generic"]):
            part = partial(evaluate, engine, job.roster, names, state, how, range(clients))
            took, _ = in_turn(repeats, lambda part=part: (part(), wait(job.device)), lambda: None)
            print(f"{names[0]} alone: {median(took):.4f} s, n={repeats}")
        if profiled:
            write_profile(profiled, measure)


def write_profile(path: str, work: Callable[[], None]) -> None:
    """Write where the time of a piece of work goes, on the device and on the host."""
    with torch.profiler.profile() as found:
        work()
    host = cProfile.Profile()
    host.runcall(work)
    with open(path, "w", encoding="utf-8") as file:
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        file.write(found.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=70))
        pstats.Stats(host, stream=file).sort_stats("cumtime").print_stats(50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", default="conv4")
    parser.add_argument("--samples", type=int, default=100, help="of a client")
    parser.add_argument("--clients", type=int, default=100, help="of the evaluation")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--profile", default="", metavar="FILE", help="where the time of an evaluation goes")
    options = parser.parse_args()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}; {options.samples} samples a client")
    if options.device == "cpu":
        features_once(options.body, 10, options.samples, options.repeats)
    else:
        print(torch.cuda.get_device_name(), options.precision)
    chosen = options.device, options.precision, options.profile
    evaluation(options.body, options.clients, options.samples, options.repeats, *chosen)


if __name__ == "__main__":
    main()
