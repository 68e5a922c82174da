"""Host time of a step of a body that is not Torso's, against the loop that somebody would write: CPU microseconds.

    python bench/foreign_host.py [--steps 20] [--times 15] [--profile]

A network of 52 convolutions with BatchNorm and ReLU6, as many layers as EfficientNet-lite0, but 4 channels wide and on
images of 4×4: the arithmetic takes next to nothing, so what is left is what Python and PyTorch spend on a step. On an
accelerator this is what kernel by kernel is bound by. The two go in turns; CPU seconds of this process, not wall time.
A visit is split into what every step costs and what a visit costs, from visits of one step and of many.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from statistics import median

import torch
from torch import nn

import foreign
from foreign import Local, Work, plain_loop

WIDTH, LAYERS, SIZE = 4, 52, 4


def thin() -> nn.Module:
    """Many layers of little work."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 1, bias=False)]
    for depth in range(LAYERS - 1):
        layers += [nn.BatchNorm2d(WIDTH), nn.ReLU6(), nn.Conv2d(WIDTH, WIDTH, 1, groups=1 + depth % 2, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(WIDTH), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10))


def spent(work: Work) -> float:
    began = time.process_time()
    work()
    return 1e6 * (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    foreign.BATCH, device = 2, torch.device("cpu")
    torch.manual_seed(0)
    many, few = (Local(thin(), SIZE, "fp32", device, 2 * steps) for steps in (options.steps, 1))
    works = {
        "loop": plain_loop(thin(), SIZE, "fp32", device, False, options.steps),
        "torso, one step": few.training(False),
        "torso": many.training(False),
    }
    for work in works.values():
        work()
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.times):
        for name, work in works.items():
            found[name].append(spent(work))
    loop, one, all_steps = (median(each) for each in found.values())
    step = (all_steps - one) / (options.steps - 1)
    told = {
        "loop, a step": loop / options.steps,
        "torso, a step": step,
        "torso, a visit beside its steps": one - step,
        f"torso, a step of a visit of {options.steps}": all_steps / options.steps,
        "ratio of steps": loop / options.steps / step,
        "lowest loop step": min(found["loop"]) / options.steps,
        "lowest torso step": (min(found["torso"]) - min(found["torso, one step"])) / (options.steps - 1),
    }
    print(json.dumps({name: round(value, 2) for name, value in told.items()}, indent=1))
    if options.profile:
        seen = cProfile.Profile()
        seen.runcall(works["torso"])
        pstats.Stats(seen).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
