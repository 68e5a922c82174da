"""Images per CPU second of bodies from other libraries in Torso, against a plain PyTorch loop.

    python bench/foreign_cpu.py NET [--size 128] [--images 100] [--repeats 3]

NET is one of `foreign_nets.NETS`, or `vit-small` (width 192, 6 layers). In turns, one thread: a plain loop (SGD with
momentum, batch 50) that repeats one batch, the same loop with batches that it makes (`made`), Torso's local loop, and
evaluations in batches of 50. Times are CPU seconds of this process, which a busy machine hardly changes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from statistics import median

import torch

from foreign import NETS, Local, plain_evaluation, plain_loop
from foreign_nets import Vit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("net", choices=[*NETS, "vit-small"])
    for name, usual in (("size", 128), ("images", 100), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cpu, size, images = torch.device("cpu"), asked.size, asked.images

    def made() -> torch.nn.Module:
        return Vit(size, 16, 192, 3, 6) if asked.net == "vit-small" else NETS[asked.net][0](size)

    local = Local(made(), size, "fp32", cpu, images)
    works = {
        "training: loop": plain_loop(made(), size, "fp32", cpu, images // 50),
        "training: loop, batches made": plain_loop(made(), size, "fp32", cpu, images // 50, True),
        "training: Torso": local.training("kernel by kernel"),
        "evaluation: loop": plain_evaluation(made(), size, cpu, 50, images),
        "evaluation: Torso": local.evaluation(50),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(asked.repeats):
        for name, work in works.items():
            began = time.process_time()
            done = work()
            rates[name].append(done / (time.process_time() - began))
    for name, found in rates.items():
        print(f"{asked.net} {size} {name:30} {median(found):8.2f} ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
