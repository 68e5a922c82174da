"""A body that is not Torso's, against the loop that somebody would write: images per second.

    python bench/foreign.py [--device cuda] [--out FOLDER] [--only NET,…] [--precision tf32,bf16] [--profile] [--tiny]

For each network, in turns (n = 3): a plain eager PyTorch loop (SGD with momentum, batch 50; images lie on the device as
floats) in both layouts; Torso's local loop one by one, eager and recorded, which also deals, gathers and normalises
the images; evaluation in batches of 50 and 500; whole rounds of `torso.run` (10 clients of 500 images) against the loop
over the same clients. Images are random: this measures speed alone. On CPU everything uses one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torso
from foreign_nets import NETS
from torso.data.augment import Augmentation, PixelLens
from torso.data.batches import Deck, Shuffle
from torso.learn.course import Classroom, Course
from torso.learn.gradients import gradients
from torso.learn.local import learn
from torso.learn.phases import Lesson
from torso.learn.recorded_foreign import ForeignRecorder
from torso.learn.steps import Habits
from torso.measure.accuracy import percent_correct
from torso.nets import Tensors, learnable, skeleton, split
from torso.precision import Precision, computing

BATCH, CLASSES = 50, 10
Work = Callable[[], int]  # → how many images


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(work: Work, device: torch.device, seconds: float) -> float:
    """Images per second."""
    wait(device)
    began, images = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        images += work()
        wait(device)  # a visit or some steps: long against this
    return images / (time.perf_counter() - began)


def plain_loop(
    module: nn.Module, size: int, precision: Precision, device: torch.device, last: bool, steps: int
) -> Work:
    """What a user would write."""
    layout = torch.channels_last if last else torch.contiguous_format
    module = module.to(device, memory_format=layout).train()  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    x = torch.randn(BATCH, 3, size, size, device=device).to(memory_format=layout)
    y = torch.randint(0, CLASSES, (BATCH,), device=device)

    def work() -> int:
        with computing(precision):
            for _ in range(steps):
                optimiser.zero_grad()
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    loss = F.cross_entropy(module(x).float(), y)
                loss.backward()
                optimiser.step()
        return steps * BATCH

    return work


class Local:
    """Torso's local loop: visits of one client."""

    def __init__(self, module: nn.Module, size: int, precision: Precision, device: torch.device, images: int) -> None:
        self.images = images
        whole = split(module)
        self.tensors: Tensors = {n: t.to(device)[None] for n, t in whole.state_dict().items()}
        samples = torch.randint(0, 256, (images, size, size, 3), dtype=torch.uint8, device=device)
        labels = torch.randint(0, CLASSES, (images,), device=device)
        self.deck = Deck.of(samples, labels, [torch.arange(images, device=device)], [0])
        lens = PixelLens.of((0.5,) * 3, (0.25,) * 3, device)
        self.room = Classroom(skeleton(whole), CLASSES, lens, Augmentation(), False, precision)
        names = learnable(whole, whole.state_dict())
        self.lesson = Lesson(1, dict.fromkeys(names, 1e-4), frozenset(whole.state_dict()))

    def training(self, recorded: bool) -> Work:
        recorder = ForeignRecorder(gradients)
        recorder.refused = "" if recorded else "as a module that cannot be recorded"
        room = replace(self.room, recorder=recorder if self.deck.index.is_cuda else None)
        course = Course(room, self.deck, (self.lesson,), Habits(BATCH, 0.9), Shuffle(0, "bench", 0))

        def work() -> int:
            learn(course, self.tensors)
            return self.images

        return work

    def evaluation(self, batch: int) -> Work:
        def work() -> int:
            percent_correct(self.room, self.deck, self.tensors, batch)
            return self.images

        return work


def plain_evaluation(module: nn.Module, size: int, device: torch.device, batch: int, images: int) -> Work:
    module = module.to(device, memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    x = torch.randn(batch, 3, size, size, device=device)

    @torch.no_grad()
    def work() -> int:
        with computing("fp32"):
            for _ in range(-(-images // batch)):
                module(x).argmax(dim=1)
        return -(-images // batch) * batch

    return work


def in_turns(works: dict[str, Work], device: torch.device, seconds: float) -> dict[str, dict[str, float]]:
    """Median, range and first call of each; a work that fails is left out and named."""
    found: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    for name, work in works.items():
        began = time.perf_counter()
        try:
            work()
            wait(device)
            work()
        except Exception as error:
            print(f"    {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        wait(device)
        first[name], found[name] = time.perf_counter() - began, []
    for _ in range(3):
        for name, each in found.items():
            each.append(rate(works[name], device, seconds))
    return {
        name: {"median": round(median(each)), "low": round(min(each)), "high": round(max(each)), "first_s": first[name]}
        for name, each in found.items()
    }


def new_widths(module: nn.Module, size: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of a forward pass at widths that come for the first time, and of the same again."""
    module = module.to(device).eval()
    spent: dict[str, list[float]] = {"first": [], "again": []}
    with torch.no_grad(), computing("fp32"):
        for width in (BATCH, 49, 47, 43, 41, 37):
            x = torch.randn(width, 3, size, size, device=device)
            for kind in ("first", "again"):
                wait(device)
                began = time.perf_counter()
                module(x)
                wait(device)
                spent[kind].append(1e3 * (time.perf_counter() - began))
    return {kind: round(median(each[1:]), 2) for kind, each in spent.items()}


def whole_run(name: str, size: int, precision: Precision, device: torch.device, images: int) -> dict[str, float]:
    """Rounds of 10 clients, Torso against the loop with a model of its own for each client; images per second."""
    make, clients = NETS[name][0], 10
    noise = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (clients * images, size, size, 3), dtype=torch.uint8, generator=noise).numpy()
    labels = torch.randint(0, CLASSES, (clients * images,), generator=noise).numpy()
    own = [(pixels[k::clients], labels[k::clients]) for k in range(clients)]
    ends = [time.perf_counter()]

    def note(*_: Any) -> None:
        wait(device)
        ends.append(time.perf_counter())

    config = {
        "method": "fedavg",
        "train": {"rounds": 3, "local_epochs": 1, "fraction": 1.0, "batch_size": BATCH, "lr": 1e-4, "momentum": 0.9},
        "measure": {"names": ["initial"], "every": 0},
        "run": {"device": device.type, "precision": precision, "workers": 1},
    }
    torso.run(config, clients=own, model=make(size), on_round=note)
    rounds = [b - a for a, b in pairwise(ends)]
    loop = loop_rounds(make(size), own, precision, device)
    each = clients * images
    return {
        "torso, first round (start, recording)": each / rounds[0],
        "torso, further rounds": each / median(rounds[1:]),
        "loop": each / loop,
        "ratio": loop / median(rounds[1:]),
    }


def loop_rounds(module: nn.Module, own: list[tuple[Any, Any]], precision: Precision, device: torch.device) -> float:
    """Seconds of a round of FedAvg as somebody would write it, the second of two."""
    module = module.to(device)
    data = [(torch.from_numpy(x.copy()).to(device), torch.from_numpy(y.copy()).to(device)) for x, y in own]
    began = 0.0
    for _ in range(2):
        wait(device)
        began = time.perf_counter()
        start = {n: t.clone() for n, t in module.state_dict().items()}
        total = {n: torch.zeros_like(t, dtype=torch.float32) for n, t in start.items()}
        for samples, labels in data:
            module.load_state_dict(start)
            visit(module, samples, labels, precision, device)
            for n, t in module.state_dict().items():
                total[n] += t / len(data)
        module.load_state_dict({n: total[n].to(t.dtype) for n, t in start.items()})
    wait(device)
    return time.perf_counter() - began


def visit(module: nn.Module, samples: Tensor, labels: Tensor, precision: Precision, device: torch.device) -> None:
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    with computing(precision):
        for rows in torch.randperm(len(labels), device=device).split(BATCH):
            x = samples[rows].permute(0, 3, 1, 2).contiguous().float().div_(255).sub_(0.5).div_(0.25)
            optimiser.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                loss = F.cross_entropy(module(x).float(), labels[rows])
            loss.backward()
            optimiser.step()


def profile(work: Work, device: torch.device, rows: int = 14) -> str:
    """Where a visit's time goes, by kernels and by operations of the host."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    work()
    wait(device)
    with profile(activities=kinds) as seen:
        work()
        wait(device)
    found = seen.key_averages()
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    top = sorted(found, key=lambda event: -getattr(event, key, 0))[:rows]
    return "\n".join(f"      {getattr(e, key) / 1e3:9.2f} ms {e.count:6d} × {e.key[:90]}" for e in top)


def measure(name: str, options: argparse.Namespace, precision: Precision, device: torch.device) -> dict[str, Any]:
    make, size = NETS[name]
    size, images = (32, 100) if options.tiny else (size, 500)
    steps = images // BATCH
    torch.manual_seed(0)
    local = Local(make(size), size, precision, device, images)
    works = {
        "loop": plain_loop(make(size), size, precision, device, False, steps),
        "loop, channels-last": plain_loop(make(size), size, precision, device, True, steps),
        "torso, eager": local.training(False),
    }
    if device.type == "cuda":
        works["torso, recorded"] = local.training(True)
    found: dict[str, Any] = {"training": in_turns(works, device, options.seconds)}
    show(found["training"], "loop")
    if options.profile and precision == options.precision[0]:
        for kind in ("torso, recorded", "torso, eager", "loop"):
            if kind not in found["training"]:
                continue
            print(f"    profile of a visit, {kind}\n{profile(works[kind], device)}", flush=True)
    if precision == options.precision[0]:
        found["a new width, ms"] = new_widths(make(size), size, device)
        print("   a pass at a width that is new, ms:", json.dumps(found["a new width, ms"]), flush=True)
        for batch in (BATCH, images):
            both = {"loop": plain_evaluation(make(size), size, device, batch, images), "torso": local.evaluation(batch)}
            found[f"evaluation {batch}"] = in_turns(both, device, options.seconds)
            print(f"   evaluation, batch {batch}, fp32")
            show(found[f"evaluation {batch}"], "loop")
    if device.type == "cuda" or options.tiny:
        found["whole run"] = {k: round(v, 3) for k, v in whole_run(name, size, precision, device, images).items()}
        print("   whole rounds:", json.dumps(found["whole run"]), flush=True)
    return found


def show(found: dict[str, dict[str, float]], base: str) -> None:
    against = found[base]["median"] if base in found else float("nan")
    for kind, row in found.items():
        spread = f"{row['low']:,.0f} to {row['high']:,.0f}"
        figures = f"{row['median']:9,.0f} images/s  {row['median'] / against:6.2f} ×"
        print(f"    {kind:22} {figures}  ({spread}; first two calls {row['first_s']:.1f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", default=",".join(NETS))
    parser.add_argument("--precision", default="", help="tf32,bf16,fp32; the first also has evaluation and a profile")
    parser.add_argument("--seconds", type=float, default=0.35, help="of each of three measurements")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--tiny", action="store_true", help="small images, to try the script")
    options = parser.parse_args()
    device, began = torch.device(options.device), time.perf_counter()
    options.precision = (options.precision or ("tf32,bf16" if device.type == "cuda" else "fp32")).split(",")
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    kept: dict[str, Any] = {"device": name, "torch": torch.__version__, "batch": BATCH, "n": 3}
    print(f"{name}, torch {torch.__version__}", flush=True)
    warnings.simplefilter("always")
    for net in options.only.split(","):
        for precision in options.precision:
            print(f"  {net}, {precision} [{time.perf_counter() - began:.0f} s]", flush=True)
            try:
                kept[f"{net} {precision}"] = measure(net, options, precision, device)
            except ImportError as error:
                print(f"    left out: {error}", flush=True)
            except Exception as error:  # one network's end is not the others'
                print(f"    ended: {type(error).__name__}: {str(error)[:500]}", flush=True)
            (options.out / "foreign.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(f"[{time.perf_counter() - began:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
