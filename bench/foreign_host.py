"""Host time (CPU microseconds) of a step with a body from another library in Torso, against a plain PyTorch loop.

    python bench/foreign_host.py [--steps 20] [--times 15] [--profile torso]

A network of 52 convolutions with BatchNorm and ReLU6, as many layers as EfficientNet-lite0, but 4 channels wide and on
images of 4×4. The arithmetic takes almost no time, so only what Python and PyTorch spend on a step is left. On an
accelerator this bounds training kernel by kernel. The two sides take turns; times are CPU seconds of this process.
Visits of one step and of many split the time into the cost of a step and the cost of a visit. `recorded`: the same with
a recording whose replay does nothing, so only the bookkeeping around it is left.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

import foreign
from foreign import Local, Work, plain_loop
from torso.learn.gradients import gradients
from torso.learn.local import learn
from torso.learn.recorded import Graph
from torso.learn.recorded_foreign import ForeignRecorder, Step
from torso.nets import Tensors

WIDTH, LAYERS, SIZE = 4, 52, 4


def thin() -> nn.Module:
    """A network of many layers with little work each."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 1, bias=False)]
    for depth in range(LAYERS - 1):
        layers += [nn.BatchNorm2d(WIDTH), nn.ReLU6(), nn.Conv2d(WIDTH, WIDTH, 1, groups=1 + depth % 2, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(WIDTH), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10))


class Nothing:
    """A stand-in for a CUDA graph; its replay does nothing."""

    def replay(self) -> None:
        """Nothing."""


class Bookkeeping(ForeignRecorder):
    """A recorder for machines without CUDA; its replays do nothing."""

    def _warm_up(self, step: Step) -> None:
        self._wanted = torch.zeros(1)

    def _captured(self, step: Step) -> tuple[Graph, tuple[Tensors, Tensor]]:
        grads, _ = step()
        return Nothing(), (grads, torch.zeros(1))


def recorded(local: Local) -> Work:
    task = local.tasks["recorded"]
    task = replace(task, context=replace(task.context, recorder=Bookkeeping(gradients, compiles="off")))

    def work() -> int:
        learn(task, local.tensors)
        return local.images

    return work


def spent(work: Work) -> float:
    began = time.process_time()
    work()
    return 1e6 * (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--profile", default="", help="torso, or recorded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    foreign.BATCH, device = 2, torch.device("cpu")
    torch.manual_seed(0)
    many, few = (Local(thin(), SIZE, "fp32", device, 2 * steps) for steps in (options.steps, 1))
    works = {
        "loop": plain_loop(thin(), SIZE, "fp32", device, options.steps),
        "torso, one step": few.training("kernel by kernel"),
        "torso": many.training("kernel by kernel"),
        "recorded, one step": recorded(few),
        "recorded": recorded(many),
    }
    for work in works.values():
        work()
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.times):
        for name, work in works.items():
            found[name].append(spent(work))
    loop, one, all_steps, one_replay, replays = (median(each) for each in found.values())
    step = (all_steps - one) / (options.steps - 1)
    replay = (replays - one_replay) / (options.steps - 1)
    told = {
        "loop, a step": loop / options.steps,
        "torso, a step": step,
        "torso, a visit beside its steps": one - step,
        f"torso, a step of a visit of {options.steps}": all_steps / options.steps,
        "recorded, a step": replay,
        "recorded, a visit beside its steps": one_replay - replay,
        "ratio of steps": loop / options.steps / step,
        "lowest loop step": min(found["loop"]) / options.steps,
        "lowest torso step": (min(found["torso"]) - min(found["torso, one step"])) / (options.steps - 1),
    }
    print(json.dumps({name: round(value, 2) for name, value in told.items()}, indent=1))
    if options.profile:
        seen = cProfile.Profile()
        seen.runcall(works[options.profile])
        pstats.Stats(seen).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
