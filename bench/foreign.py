"""Images per second of bodies from other libraries in Torso, against a plain PyTorch loop.

    python bench/foreign.py [--device cuda] [--out FOLDER] [--only NET,…] [--precision tf32,bf16] [--budget 150]
                            [--kinds loop,made,…] [--profile] [--rounds] [--stacked] [--tiny]

For each network these take turns in short stretches:

- a plain eager PyTorch loop (SGD with momentum, batch 50) that repeats one batch, which is on the device as floats;
- the same loop with batches that it makes (`made`): shuffled, gathered from uint8 and normalised, as Torso's are;
- Torso's local loop with one client: kernel by kernel, recorded, and compiled and recorded. Each visit has new
  velocities and a copy of the tensors;
- evaluation in batches of 50 and 500.

First, one step of each kind is compared with the same step in float32: ‖Δ − Δ32‖ / ‖Δ32‖ over the changes of all
parameters. `--rounds`: whole rounds of `torso.run` (10 clients of 500 images) against the loop over the same clients.
`--stacked`: ten clients under vmap, BatchNorm included, against ten steps one by one. Images are random, because this
measures speed only. On CPU everything uses one thread. Nothing begins after `--budget` seconds, so the most important
measurements come first.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from foreign_nets import NETS
from foreign_second import Gate
from torso.data.augment import Augmentation, PixelLens
from torso.data.batches import Deck, Shuffle
from torso.learn.gradients import gradients
from torso.learn.local import learn
from torso.learn.phases import LocalPhase
from torso.learn.recorded_foreign import ForeignRecorder
from torso.learn.steps import LocalSettings
from torso.learn.task import LocalContext, LocalTask
from torso.measure.accuracy import percent_correct
from torso.nets import Tensors, learnable, skeleton, split
from torso.precision import Precision, computing

BATCH, CLASSES = 50, 10
Work = Callable[[], int]  # → how many images
Kind = Literal["kernel by kernel", "recorded", "compiled", "searched", "math"]
KINDS: tuple[Kind, ...] = ("kernel by kernel", "recorded", "compiled", "searched", "math")
"""`searched`: recorded with cudnn.benchmark; `math`: recorded, with attention as products and a softmax."""


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
    module: nn.Module, size: int, precision: Precision, device: torch.device, steps: int, made: bool = False
) -> Work:
    """The plain PyTorch loop. `made`: it also makes the batches."""
    module = module.to(device).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    samples = torch.randint(0, 256, (steps * BATCH, size, size, 3), dtype=torch.uint8, device=device)
    labels = torch.randint(0, CLASSES, (steps * BATCH,), device=device)
    same = torch.randn(BATCH, 3, size, size, device=device), labels[:BATCH]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        if not made:
            yield from [same] * steps
            return
        for rows in torch.randperm(len(labels), device=device).split(BATCH):
            x = samples[rows].permute(0, 3, 1, 2).contiguous().float().div_(255).sub_(0.5).div_(0.25)
            yield x, labels[rows]

    def work() -> int:
        with computing(precision):
            for x, y in batches():
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
        self.context = LocalContext(skeleton(whole), CLASSES, lens, Augmentation(), False, precision)
        self.names = learnable(whole, whole.state_dict())
        self.phase = LocalPhase(1, dict.fromkeys(self.names, 1e-4), frozenset(whole.state_dict()))
        self.tasks = {kind: self._task(kind) for kind in KINDS}

    def _task(self, kind: Kind) -> LocalTask:
        recorder = ForeignRecorder(gradients, compiles="on" if kind == "compiled" else "off")
        recorder.refused = "as a module that cannot be recorded" if kind == "kernel by kernel" else ""
        context = replace(self.context, recorder=recorder if self.deck.index.is_cuda else None)
        return LocalTask(context, self.deck, (self.phase,), LocalSettings(BATCH, 0.9), Shuffle(0, "bench", 0))

    def training(self, kind: Kind) -> Work:
        def work() -> int:
            torch.backends.cudnn.benchmark = kind == "searched"
            with sdpa_kernel(SDPBackend.MATH) if kind == "math" else nullcontext():
                learn(self.tasks[kind], self.tensors)
            torch.backends.cudnn.benchmark = False
            return self.images

        return work

    def moved(self, kind: Kind, precision: Precision) -> Tensor:
        """The change of all parameters in a step of a full batch, as one vector."""
        task = self.tasks[kind]
        index = self.deck.index[:, :BATCH]
        deck = replace(self.deck, index=index, sizes=(BATCH,))
        task = replace(task, deck=deck, context=replace(task.context, precision=precision))
        after = learn(task, self.tensors).tensors
        return torch.cat([(after[n] - self.tensors[n]).flatten().double() for n in self.names])

    def evaluation(self, batch: int) -> Work:
        def work() -> int:
            percent_correct(self.context, self.deck, self.tensors, batch)
            return self.images

        return work

    def told(self, kind: Kind) -> str:
        """Why the visits were not compiled or recorded as meant; empty if they were."""
        recorder = self.tasks[kind].context.recorder
        return "" if not isinstance(recorder, ForeignRecorder) else recorder.uncompiled or recorder.refused


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


def in_turns(
    works: dict[str, Work], device: torch.device, times: int, seconds: float, gate: Gate
) -> dict[str, dict[str, Any]]:
    """Median, range and first calls of each kind of work. Work that fails is left out and named. `host`: milliseconds
    until a call returns. `visit`: until the device has finished, too."""
    rates: dict[str, list[float]] = {}
    found: dict[str, dict[str, Any]] = {}
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
        found[name], rates[name] = {"first_s": round(time.perf_counter() - began, 2)}, []
    gate.enter()
    for _ in range(times):
        for name, each in rates.items():
            each.append(rate(works[name], device, seconds))
    for name, each in rates.items():
        began = time.perf_counter()
        works[name]()
        host = time.perf_counter() - began
        wait(device)
        ended = time.perf_counter() - began
        found[name] |= {"median": round(median(each)), "low": round(min(each)), "high": round(max(each))}
        found[name] |= {"host_ms": round(1e3 * host, 1), "visit_ms": round(1e3 * ended, 1)}
    return found


def profile(work: Work, device: torch.device, rows: int = 14) -> list[str]:
    """Where a visit's time goes, by kernels and by operations of the host."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    work()
    wait(device)
    with profile(activities=kinds) as seen:
        work()
        wait(device)
    found = [event for event in seen.key_averages() if device.type != "cuda" or event.self_device_time_total > 0]
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    top = sorted(found, key=lambda event: -getattr(event, key, 0))[:rows]
    total = sum(getattr(event, key, 0) for event in found)
    lines = [f"{total / 1e3:9.2f} ms {sum(event.count for event in found):6d} × all"]
    return lines + [f"{getattr(e, key) / 1e3:9.2f} ms {e.count:6d} × {e.key[:100]}" for e in top]


def ceilings(device: torch.device) -> dict[str, float]:
    """What the device can do: TB/s of a copy (read and written), TFLOP/s of products of 8,192 × 8,192."""

    def seconds(call: Callable[[], object], times: int = 10) -> float:
        call()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()  # type: ignore[no-untyped-call]
        for _ in range(times):
            call()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()  # type: ignore[no-untyped-call]
        return start.elapsed_time(end) / 1e3 / times  # type: ignore[no-untyped-call,no-any-return]

    big = torch.randn(2**28, device=device)
    into, side = torch.empty_like(big), 8192
    a, b = torch.randn(2, side, side, device=device)
    found = {"copy TB/s": 2 * 4 * 2**28 / seconds(lambda: into.copy_(big)) / 1e12}
    for precision in ("fp32", "tf32"):
        with computing(precision):
            found[f"{precision} TFLOP/s"] = 2 * side**3 / seconds(lambda: a @ b) / 1e12
    c, d = a.bfloat16(), b.bfloat16()
    found["bf16 TFLOP/s"] = 2 * side**3 / seconds(lambda: c @ d) / 1e12
    return {name: round(value, 2) for name, value in found.items()}


class Watch:
    """Seconds since the start, and whether there are any left."""

    def __init__(self, budget: float) -> None:
        self.began, self.budget = time.perf_counter(), budget

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    def allows(self, what: str) -> bool:
        if self.now > self.budget:
            print(f"    left out, {self.now:.0f} s are over: {what}", flush=True)
        return self.now <= self.budget


def measure(
    name: str, options: argparse.Namespace, precision: Precision, device: torch.device, watch: Watch
) -> Iterator[dict[str, Any]]:
    """Yield the measurements of a network one after the other."""
    make, size = NETS[name]
    size, images = (32, 100) if options.tiny else (size, 500)
    torch.manual_seed(0)
    local = Local(make(size), size, precision, device, images)
    kinds = [kind for kind in KINDS if kind in options.kinds and (device.type == "cuda" or kind == KINDS[0])]
    loops = {"loop": False, "made": True}
    works = {
        "loop, batches made" if made else "loop": plain_loop(make(size), size, precision, device, images // BATCH, made)
        for loop, made in loops.items()
        if loop in options.kinds
    }
    works |= {f"torso, {kind}": local.training(kind) for kind in kinds}
    if not watch.allows("the compiled steps"):
        works.pop("torso, compiled", None)
    turns = options.times, options.seconds, options.gate
    training = in_turns(works, device, *turns)
    show(training)
    yield {"n": options.times, "training": training}
    why = {kind: why for kind in kinds if (why := local.told(kind)) and kind != "kernel by kernel"}
    exact = local.moved("kernel by kernel", "fp32")
    moved = {
        kind: float(f"{(local.moved(kind, precision) - exact).norm() / exact.norm():.3g}")
        for kind in kinds
        if f"torso, {kind}" in training
    }
    print("    a step against fp32:", json.dumps(moved), *([json.dumps(why)] if why else []), flush=True)
    yield {"moved, against fp32": moved, "not what it was meant to be": why}
    if options.profile and watch.allows("the profile"):
        for kind in ("torso, recorded", "torso, compiled", "torso, searched", "torso, math"):
            if kind in training:
                lines = profile(works[kind], device)
                print(f"    profile of a visit, {kind}", *lines, sep="\n      ", flush=True)
                yield {f"profile, {kind}": lines}
    if "evaluation" in options.kinds and precision == options.precision[0]:
        for batch in (BATCH, images):
            if watch.allows("evaluation"):
                plain = plain_evaluation(make(size), size, device, batch, images)
                both = {"loop": plain, "torso": local.evaluation(batch)}
                found = in_turns(both, device, options.times, options.seconds / 2, options.gate)
                print(f"   evaluation, batch {batch}, fp32")
                show(found)
                yield {f"evaluation {batch}": found}


def show(found: dict[str, dict[str, Any]]) -> None:
    against = next(iter(found.values()), {"median": 1})["median"]  # the first of them
    for kind, row in found.items():
        spread = f"{row['low']:,.0f} to {row['high']:,.0f}"
        figures = f"{row['median']:9,.0f} images/s  {row['median'] / against:6.2f} ×"
        more = f"first two calls {row['first_s']:.1f} s; host {row['host_ms']:.1f} of {row['visit_ms']:.1f} ms"
        print(f"    {kind:24} {figures}  ({spread}; {more})", flush=True)


def further(
    name: str, options: argparse.Namespace, precision: Precision, device: torch.device, watch: Watch
) -> Iterator[dict[str, Any]]:
    """Whole rounds, and clients in a stack."""
    from foreign_more import stacked_clients, whole_run

    make, size = NETS[name]
    size, images = (32, 100) if options.tiny else (size, 500)
    if options.rounds and watch.allows(f"whole rounds of {name}"):
        run = whole_run(make, size, precision, device, images)
        print(f"   {name}, {precision}, whole rounds:", json.dumps(run), flush=True)
        yield {"whole run": run}
    if options.stacked and precision == "tf32" and watch.allows(f"a stack of {name}"):
        stack = stacked_clients(make(size), size, precision, device)
        print(f"   {name}, {precision}, ten clients:", json.dumps(stack), flush=True)
        yield {"stacked": stack}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument(
        "--only", default=",".join(NETS), help="lite0-still: without random numbers, so it can be compiled"
    )
    parser.add_argument("--precision", default="", help="tf32,bf16,fp32; the first also has evaluation")
    parser.add_argument("--kinds", default="loop,made,kernel by kernel,recorded,compiled,evaluation")
    parser.add_argument("--times", type=int, default=5, help="stretches of each")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a stretch")
    parser.add_argument("--budget", type=float, default=150, help="seconds after which nothing new begins")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--rounds", action="store_true", help="whole rounds of torso.run too")
    parser.add_argument("--stacked", action="store_true", help="ten clients under vmap too")
    parser.add_argument("--tiny", action="store_true", help="small images, to try the script")
    parser.add_argument("--gate", default="", help="of bench/foreign_second.py, as are the next two")
    parser.add_argument("--name", default="")
    parser.add_argument("--parties", type=int, default=1)
    options = parser.parse_args()
    options.gate, options.kinds = Gate(options.gate, options.name, options.parties), options.kinds.split(",")
    device, watch = torch.device(options.device), Watch(options.budget)
    options.precision = (options.precision or ("tf32,bf16" if device.type == "cuda" else "fp32")).split(",")
    if device.type == "cpu":
        torch.set_num_threads(1)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    kept: dict[str, Any] = {"device": machine, "torch": torch.__version__, "batch": BATCH}
    print(f"{machine}, torch {torch.__version__}", flush=True)
    warnings.simplefilter("always")
    for kind in (DeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", kind)
    if device.type == "cuda" and not options.name:
        kept["ceilings"] = ceilings(device)
        print("  ", json.dumps(kept["ceilings"]), flush=True)
    for part in (measure, further) if options.rounds or options.stacked else (measure,):
        for precision in options.precision:
            for net in options.only.split(","):
                if not watch.allows(f"{net}, {precision}"):
                    continue
                print(f"  {net}, {precision} [{watch.now:.0f} s]", flush=True)
                try:
                    for found in part(net, options, precision, device, watch):
                        kept.setdefault(f"{net} {precision}", {}).update(found)
                        (options.out / "foreign.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
                except ImportError as error:
                    print(f"    left out: {error}", flush=True)
                except Exception as error:  # one network's end is not the others'
                    print(f"    ended: {type(error).__name__}: {str(error)[:500]}", flush=True)
    options.gate.leave()
    print(f"[{watch.now:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
