"""Kernels of stacked convolutions on an accelerator: every kernel for every layer, and whole steps.

    python bench/kernel_shapes.py --out FOLDER [--parts check,shapes,engine,profile] [--seconds 100] [--all]

`check`: ways against PyTorch's own convolution in float32, client by client, in several processes, which also compile
the kernels; a process that a kernel brought down starts again behind it. `shapes`: microseconds of each pass (forward
with the cast of the weights, gradient of the input, gradient of the weight), and of cuDNN's convolution with one weight
on the same images (`one`). The best of them are put into the table before `engine`: steps of stacked clients against
one large model. `profile`: which kernels a step spends its time in. Everything is kept as JSON, line by line, the rows
of `engine` also as FOLDER/large.json. `--all`: every layer and way; without it those that the table does not have.
`--table` prints src/torso/nets/kernels/table.py from it and the shapes in FOLDER, without an accelerator.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernel_layers import (
    BATCH,
    CUDA,
    FAR,
    KINDS,
    LAYERS,
    Conv,
    by_cudnn,
    compile_others,
    far,
    layer_seen,
    shape_of,
    tensors,
    truth,
    ways_of,
    work,
)
from torso.engine.bench import row, steps
from torso.nets.kernels.table import TABLE
from torso.nets.kernels.ways import Pass, Way, way
from torso.precision import computing

Pass_ = tuple[Conv, str, Pass]


def is_new(todo: Pass_) -> bool:
    """Whether the table does not have the layer yet."""
    layer, precision, kind = todo
    return layer_seen(kind, layer, tensors(layer, 1, precision)[0], precision).key(kind) not in TABLE


def passes(every: bool) -> list[Pass_]:
    todo = [(layer, precision, kind) for kind in KINDS for layer in LAYERS for precision in ("bf16", "tf32")]
    return todo if every else [one for one in todo if is_new(one)]


def check(part: int, parts: int, start: int, out: Path, every: bool) -> None:
    """A share of all ways with three clients, from the `start`-th on. The ways in use go first, those that could bring
    a process down last."""
    new = {(layer, precision, kind) for layer, precision, kind in passes(every)}
    todo: list[tuple[Pass_, Way]] = []
    for layer, precision, kind in passes(True):
        ways = ways_of(kind, layer, tensors(layer, 1, precision)[0], precision)
        todo += [((layer, precision, kind), by) for by in (ways if (layer, precision, kind) in new else ways[:1])]
    for layer in LAYERS[1::5]:
        todo += [((layer, "ieee", kind), Way("box" if layer.stride == 1 else "gather")) for kind in KINDS]

    def risk(one: tuple[Pass_, Way]) -> tuple[bool, bool]:
        (layer, precision, kind), by = one
        used = precision != "ieee" and by == ways_of(kind, layer, tensors(layer, 1, precision)[0], precision)[0]
        return by.name == "lines" or (by.how is not None and layer.stride == 2), not used

    todo = sorted(todo, key=risk)
    mine = todo[part::parts]
    with (out / f"check-{part}.jsonl").open("a") as kept:
        for place, ((layer, precision, kind), by) in list(enumerate(mine))[start:]:
            found: dict[str, Any] = {"layer": str(layer), "precision": precision, "kind": kind, "way": str(by)}
            try:
                found |= compared(layer, precision, kind, by)
            except Exception as failed:
                found |= {"ok": False, "failed": f"{type(failed).__name__}: {failed}"[:300]}
            print(json.dumps(found), file=kept, flush=True)
            if any(word in found.get("failed", "") for word in ("illegal", "misaligned", "CUDA error", "unspecified")):
                kept.close()
                again = ["--worker", f"{part}/{parts}/{place + 1}", *(["--all"] if every else [])]
                os.execv(sys.executable, [sys.executable, __file__, "--out", str(out), *again])


def compared(layer: Conv, precision: str, kind: Pass, by: Way) -> dict[str, Any]:
    x, weight, slope = tensors(layer, 3, precision)
    with computing("fp32"):
        exact = torch.float64 if precision == "ieee" else torch.float32
        wanted = truth(kind, layer, x, weight, slope, exact)
    with computing("fp32" if precision == "ieee" else "tf32"):
        error = far(work(kind, by, layer, x, weight, slope)(), wanted)
        if kind == "forward" and by == shape_of(layer, x, weight).forward:
            compile_others(layer, x, weight)
    return {"error": error, "ok": error < FAR[precision]}


Right = set[tuple[str, str, str, str]]


def check_all(out: Path, seconds: float, every: bool) -> Right:
    """In 14 processes; the ways that are right. A layer whose chosen way is not among them goes the way of before."""
    began, count = time.perf_counter(), 14
    command = [sys.executable, __file__, "--out", str(out), *(["--all"] if every else []), "--worker"]
    for old in out.glob("check-*.jsonl"):
        old.unlink()
    started = [
        subprocess.Popen([*command, f"{n}/{count}/0"], stderr=(out / f"check-{n}.err").open("w")) for n in range(count)
    ]
    for process in started:
        try:
            process.wait(max(1.0, seconds - (time.perf_counter() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
    lines = [json.loads(line) for file in sorted(out.glob("check-*.jsonl")) for line in file.read_text().splitlines()]
    bad, codes = [line for line in lines if not line["ok"]], [process.poll() for process in started]
    print(f"check: {len(lines)} ways, {len(bad)} wrong, exits {codes}, {time.perf_counter() - began:.0f} s", flush=True)
    for line in bad[:10]:
        print("  wrong", json.dumps(line)[:220], flush=True)
    worst = {p: max((line["error"] for line in lines if line["precision"] == p and line["ok"]), default=0) for p in FAR}
    print("  largest relative error", {p: f"{e:.1e}" for p, e in worst.items()}, flush=True)
    right = {(line["layer"], line["precision"], line["kind"], line["way"]) for line in lines if line["ok"]}
    for layer in LAYERS:
        for precision in ("bf16", "tf32"):
            x = tensors(layer, 1, precision)[0]
            for kind in KINDS:
                seen = layer_seen(kind, layer, x, precision)
                if (str(layer), precision, kind, str(way(kind, seen))) not in right:
                    print(f"  not right, or not reached: {seen.key(kind)} {way(kind, seen)}", flush=True)
                    TABLE[seen.key(kind)] = "box" if seen.boxed and seen.stride == 1 else "gather"
    return right


def keep(file: Path, *lines: dict[str, Any]) -> None:
    with file.open("a") as kept:
        kept.writelines(json.dumps(line) + "\n" for line in lines)


def microseconds(one: Callable[[], Any]) -> float:
    """Median of three stretches of replays of a recording, 3 ms each."""
    one()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def stretch(times: int) -> float:
        begin.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / times

    stretch(1)
    times = max(2, min(60, int(3e3 / stretch(2))))
    return median(stretch(times) for _ in range(3))


def attempt(one: Callable[[], Any]) -> float | None:
    try:
        return microseconds(one)
    except Exception as failed:
        print(f"  failed: {type(failed).__name__}: {failed}"[:200], flush=True)
        torch.cuda.synchronize()
        return None


def measure_layer(layer: Conv, kind: Pass, precision: str, clients: int, ways: list[Way]) -> dict[str, float]:
    """Microseconds by way."""
    x, weight, slope = tensors(layer, clients, precision)
    todo: dict[str, Callable[[], Any]] = {"one": by_cudnn(kind, layer, x, weight[0], slope)}
    todo |= {str(by): work(kind, by, layer, x, weight, slope) for by in ways}
    found = {name: attempt(one) for name, one in todo.items()}
    return {name: took for name, took in found.items() if took is not None}


class Shapes:
    """All ways with the first number of clients; with the others, the three best."""

    def __init__(self, out: Path, right: Right | None, todo: list[Pass_]) -> None:
        self.out, self.right, self.todo = out, right, todo
        self.best: dict[Pass_, list[str]] = {}

    def measure(self, clients: int, seconds: float) -> None:
        began = time.perf_counter()
        total: dict[str, list[float]] = {"bf16": [0.0] * 3, "tf32": [0.0] * 3}
        for one in self.todo:
            if time.perf_counter() - began > seconds:
                print(f"shapes: out of time at {clients} × {one}", flush=True)
                break
            said = self._pass(one, clients, total[one[1]])
            print(f"{clients} {one[0]} {one[1]} {one[2]}: {said}", flush=True)
        for precision, (one_model, first, taken) in total.items():
            sums = f"one {one_model:.0f} us, best {first:.0f}, chosen before {taken:.0f}"
            print(f"sum, {precision}, {clients} clients: {sums}", flush=True)

    def _pass(self, todo: Pass_, clients: int, total: list[float]) -> str:
        layer, precision, kind = todo
        try:
            with computing("tf32"):
                x = tensors(layer, 1, precision)[0]
                chosen, seen = str(ways_of(kind, layer, x, precision)[0]), layer_seen(kind, layer, x, precision)
                name = (str(layer), precision, kind)
                ways = [
                    w
                    for w in ways_of(kind, layer, x, precision)
                    if (not self.right or (*name, str(w)) in self.right)
                    and (todo not in self.best or str(w) in {*self.best[todo], chosen})
                ]
                took = measure_layer(layer, kind, precision, clients, ways)
        except Exception as failed:
            return f"{type(failed).__name__}: {failed}"[:120]
        order = sorted((str(w) for w in ways if str(w) in took), key=took.__getitem__)
        line = {"clients": clients, "layer": str(layer), "precision": precision, "kind": kind, "chosen": chosen}
        line["key"] = seen.key(kind)
        keep(self.out / "shapes.jsonl", line | {"us": {n: round(t, 1) for n, t in took.items()}})
        if not order or "one" not in took:
            return "nothing"
        if todo not in self.best:
            self.best[todo] = order[:3]
            TABLE[seen.key(kind)] = first_of(kind, {n: took[n] for n in order})
        for place, way_ in enumerate(("one", order[0], chosen)):
            total[place] += took.get(way_, took[order[0]])
        rates = ", ".join(f"{n} {took[n]:.0f} us {took['one'] / took[n]:.2f}" for n in order[:1])
        return f"one {took['one']:.0f} us; {rates}"


def first_of(kind: Pass, took: dict[str, float]) -> str:
    """Columns and gather give BatchNorm no statistics, so forward they have to be a tenth faster than the others."""
    slow = {n: t * (1.1 if kind == "forward" and n in ("columns", "gather") else 1.0) for n, t in took.items()}
    return min(slow, key=slow.__getitem__)


def print_table(out: Path) -> None:
    """The table as it is, with the best ways of layers that were measured with the fewest clients."""
    found = dict(TABLE)
    lines = [json.loads(line) for line in (out / "shapes.jsonl").read_text().splitlines()]
    for line in sorted(lines, key=lambda line: -line["clients"]):
        names = {n: t for n, t in line["us"].items() if n not in ("one", "each", "grouped")}
        if names:
            found[line["key"]] = first_of(line["kind"], names)
    print('"""The fastest way of layers that were measured; written by `bench/kernel_shapes.py --table`."""\n')
    print("from __future__ import annotations\n\nTABLE: dict[str, str] = {")
    for key, best in sorted(found.items()):
        print(f'    "{key}": "{best}",')
    print("}")


def profile(out: Path, seconds: float) -> None:
    """The kernels of a step, by time."""
    from torch.profiler import ProfilerActivity

    began, kept = time.perf_counter(), {}
    for body in ("resnet18", "vgg11"):
        for precision in ("bf16", "tf32"):
            for clients, batch in ((10, BATCH),):
                if time.perf_counter() - began > seconds:
                    return
                try:
                    step = steps(body, clients, batch, precision, CUDA)  # type: ignore[arg-type]
                    for _ in range(4):
                        step()
                    torch.cuda.synchronize()
                    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
                        for _ in range(5):
                            step()
                        torch.cuda.synchronize()
                    by_name: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
                    for event in seen.events():
                        if event.device_type == torch.autograd.DeviceType.CUDA:
                            by_name[event.name][0] += event.time_range.elapsed_us() / 5
                            by_name[event.name][1] += 1 / 5
                    name = f"{body} {precision} {clients}×{batch}"
                    order = sorted(by_name.items(), key=lambda item: -item[1][0])
                    kept[name] = [(kernel, round(t, 1), round(n, 1)) for kernel, (t, n) in order]
                    (out / "profile.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False))
                    whole = sum(t for t, _ in by_name.values())
                    print(f"profile {name}: {whole:.0f} us in kernels", flush=True)
                    for kernel, (t, n) in order[:5]:
                        print(f"   {t:7.0f} us ×{n:3.0f} {_short(kernel)}", flush=True)
                    del step, seen
                except Exception as failed:
                    print(f"profile {body} {precision}: {type(failed).__name__}: {failed}"[:300], flush=True)
                torch.cuda.empty_cache()


def _short(kernel: str) -> str:
    for word in (
        "void ",
        "at::native::",
        "(anonymous namespace)::",
        "cutlass__5x_cudnn::",
        "vectorized_elementwise_kernel",
    ):
        kernel = kernel.replace(word, "")
    return kernel[:64]


def engine(out: Path, bodies: Sequence[str], clients: int, until: float) -> None:
    """Stacked against centralised; `until` by the clock."""
    for body in bodies:
        for precision in ("bf16", "tf32"):
            if time.perf_counter() > until:
                print(f"engine: out of time at {clients} × {body} {precision}", flush=True)
                continue
            try:
                stacked = row(body, clients, BATCH, precision, CUDA, "stacked")  # type: ignore[arg-type]
                large = row(body, 1, clients * BATCH, precision, CUDA, "centralised")  # type: ignore[arg-type]
            except Exception as failed:
                print(f"engine {body} {precision} {clients}: {type(failed).__name__}: {failed}"[:300], flush=True)
                torch.cuda.empty_cache()
                continue
            stacked["times_centralised"] = round(stacked["images_per_s"] / large["images_per_s"], 3)
            keep(out / "engine.jsonl", {"precision": precision, **stacked}, {"precision": precision, **large})
            print(
                f"{body:9} {precision} {clients:3}: {stacked['images_per_s']:9,} ({stacked['low']:,} to "
                f"{stacked['high']:,}) of {large['images_per_s']:9,}: {stacked['times_centralised']:.3f}, "
                f"{stacked['GiB']} GiB ({large['GiB']}), warm-up {stacked['warm_up_s']} s",
                flush=True,
            )


def write_rows(out: Path) -> None:
    """large.json: the machine, versions, all rows, and what a client more needs of memory."""
    import triton

    rows = [json.loads(line) for line in (out / "engine.jsonl").read_text().splitlines()]
    held = {(r["body"], r["precision"], r["clients"]): r["GiB"] for r in rows if r["what"] == "stacked"}
    each = {}
    for (body, precision, clients), most in held.items():
        if clients == 50 and (few := held.get((body, precision, 10))) is not None:
            each[f"{body} {precision}"] = round((most - few) / 40, 3)
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    machine["cudnn"] = str(torch.backends.cudnn.version())
    whole = {"machine": machine, "n": 3, "GiB_per_client": each, "rows": rows}
    (out / "large.json").write_text(json.dumps(whole, indent=1) + "\n")
    print("GiB a client:", json.dumps(each), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default="check,shapes,engine,profile")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--clients", default="10,20,50")
    parser.add_argument("--worker", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print_table(options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker:
        check(*map(int, options.worker.split("/")), options.out, options.all)
        return
    began, counts, parts = time.perf_counter(), [int(n) for n in options.clients.split(",")], options.parts.split(",")
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    todo = sorted(passes(options.all), key=lambda one: (one[2] != "weight", one[0].stride))
    large = ("vgg11", "resnet18", "resnet50")
    right = check_all(options.out, options.seconds * 0.4, options.all) if "check" in parts else None
    if "shapes" in parts:
        Shapes(options.out, right, todo).measure(counts[0], min(18.0, options.seconds * 0.2))
    if "engine" in parts:
        for clients in (counts[0], counts[-1], *counts[1:-1])[: len(counts)]:
            engine(options.out, large, clients, began + 0.95 * options.seconds)
        engine(options.out, ("mobilenet", "conv4"), 100, began + options.seconds)
        write_rows(options.out)
    if "profile" in parts:
        profile(options.out, began + options.seconds - time.perf_counter())
    print(f"done in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
