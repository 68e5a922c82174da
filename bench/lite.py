"""EfficientNet-lite0 on an accelerator: training and evaluation of stacked clients, images a second, memory a client.

    python bench/lite.py [--out $OUT] [--seconds 60] [--profile]

Training rows are those of `torso bench engine`, at 64 × 64 and 128 × 128, in bf16 and tf32: `stacked` (10 and 30
clients of batch 50, 100 of batch 32), `centralised` (one model, the same images a step), `one by one` (one client,
plain eager PyTorch). Evaluation rows: one model for everybody on 500 images at a time, and 30 models on 50 each, in
float32 as a run evaluates. Memory a client: what 30 stacked clients take beyond 10, divided by 20.
`--profile` also prints which kernels the time of a stacked training step goes to. `--quick`: tiny, to try the script.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torso.engine.bench import per_second, row, steps, wait
from torso.nets import LinearHead, apply, build, set_modes, skeleton
from torso.precision import computing, precision_of

BODY = "efficientnet-lite0"
Case = tuple[str, int, str, int, int]  # what, size, precision, clients, batch
BATCHES = {30: 50, 10: 50, 100: 32}


def training_cases(sizes: tuple[int, ...]) -> list[Case]:
    """The training rows, the most important first, since time may run out. One by one comes last, since cuDNN may
    search for half a minute."""
    kinds = [(precision, size) for precision in ("bf16", "tf32") for size in sizes]
    found: list[Case] = []
    for clients, batch in BATCHES.items():
        for precision, size in kinds:
            found.append(("stacked", size, precision, clients, batch))
            found.append(("centralised", size, precision, 1, clients * batch))
    return found + [("one by one", size, precision, 1, 50) for precision, size in reversed(kinds)]


def train(case: Case, device: torch.device) -> dict[str, Any]:
    what, size, asked, clients, batch = case
    eager = what == "one by one"
    exact = precision_of(asked, device)
    found = row(BODY, clients, batch, exact, device, what, recorded=not eager, plain=eager, size=size)
    return {"size": size, "precision": asked, **found}


def looks(size: int, clients: int, batch: int, device: torch.device) -> Callable[[], object]:
    """A function that evaluates `clients` models on a batch each."""
    whole = build(BODY, 10, (3, size, size), LinearHead(), seed=0)
    net = skeleton(whole)
    set_modes(net, frozenset())
    tensors = {n: t.to(device).expand(clients, *t.shape).contiguous() for n, t in whole.state_dict().items()}
    images = torch.rand(clients, batch, size, size, 3, device=device).movedim(-1, 2)

    @torch.no_grad()
    def look() -> object:
        with computing("fp32"):
            return apply(net, tensors, images)

    return look


def evaluate(size: int, clients: int, batch: int, device: torch.device) -> dict[str, Any]:
    look = looks(size, clients, batch, device)
    found = [per_second(look, device) * clients * batch for _ in range(3)]
    what = "evaluation, one model" if clients == 1 else "evaluation, stacked"
    made = {"what": what, "size": size, "precision": "fp32", "clients": clients, "batch": batch}
    return made | {"images_per_s": round(median(found)), "low": round(min(found)), "high": round(max(found)), "n": 3}


def profile(size: int, clients: int, batch: int, precision: str, device: torch.device) -> str:
    """The kernels of three stacked training steps, by time."""
    step = steps(BODY, clients, batch, precision_of(precision, device), device, recorded=False, size=size)
    for _ in range(2):
        step()
    wait(device)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=kinds) as seen:
        for _ in range(3):
            step()
        wait(device)
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    return str(seen.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=60))


def told(found: dict[str, Any]) -> str:
    extra = " ".join(f"{k} {found[k]}" for k in ("TFLOP_per_s", "GB_per_s", "GiB", "warm_up_s", "error") if k in found)
    rate = f"{found.get('images_per_s', 0):9,d} images/s ({found.get('low', 0):,d} to {found.get('high', 0):,d})"
    return (
        f"{found['what']:22} {found['size']:3}px {found['precision']:5} {found['clients']:3} clients × "
        f"{found['batch']:4} {rate} {extra}"
    )


def ratios(rows: list[dict[str, Any]]) -> list[str]:
    """Stacked against centralised and one by one of the same size and precision; memory of a further client."""
    by = {(r["what"], r["size"], r["precision"], r["clients"] * r["batch"]): r for r in rows if "error" not in r}
    lines = []
    for (what, size, precision, images), found in by.items():
        large = by.get(("centralised", size, precision, images))
        alone = by.get(("one by one", size, precision, 50))
        for name, other in {"times_centralised": large, "times_one_by_one": alone}.items():
            if what == "stacked" and other:
                found[name] = round(found["images_per_s"] / other["images_per_s"], 2)
                lines.append(f"{size}px {precision} {found['clients']:3} clients: {name} {found[name]}")
        few = by.get(("stacked", size, precision, 500))
        if what == "stacked" and images == 1500 and few and "GiB" in few:
            found["MiB_per_client"] = round((found["GiB"] - few["GiB"]) / 20 * 1024)
            lines.append(f"{size}px {precision}: {found['MiB_per_client']} MiB for a further client of batch 50")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=60, help="begin no further row after so many seconds")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--quick", action="store_true", help="32 × 32 and few clients, to try the script")
    options = parser.parse_args()
    device, began = torch.device("cuda" if torch.cuda.is_available() else "cpu"), time.perf_counter()
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    rows: list[dict[str, Any]] = []

    def keep(what: str, case: Case, measure: Callable[[], dict[str, Any]]) -> None:
        if time.perf_counter() - began > options.seconds:
            print(f"time is up before {what} {case}", flush=True)
            return
        try:
            found = measure()
        except Exception as error:  # one row's end is not the others'
            found = dict(zip(("what", "size", "precision", "clients", "batch"), case, strict=True))
            found["error"] = repr(error)[:300]
        rows.append(found)
        print(told(found), f"[{time.perf_counter() - began:.0f} s]", flush=True)
        report = {"device": name, "torch": torch.__version__, "body": BODY, "rows": rows}
        (options.out / "lite.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    if options.quick:
        BATCHES.clear()
        BATCHES.update({2: 4})
    sizes = (32,) if options.quick else (128, 64)
    cases = training_cases(sizes)
    alone = len(sizes) * 2
    for case in cases[:-alone]:
        keep("training", case, lambda case=case: train(case, device))  # type: ignore[misc]
    for size in sizes:
        for clients, batch in ((1, 50), (3, 4)) if options.quick else ((1, 500), (30, 50)):
            case = ("evaluation", size, "fp32", clients, batch)
            keep("evaluation", case, lambda s=size, c=clients, b=batch: evaluate(s, c, b, device))  # type: ignore[misc]
    for case in cases[-alone:]:
        keep("training", case, lambda case=case: train(case, device))  # type: ignore[misc]
    lines = ratios(rows)
    print("\n".join(lines), flush=True)
    if options.profile:
        for precision in ("bf16", "tf32"):
            print(
                precision, profile(sizes[0], 2 if options.quick else 30, 4 if options.quick else 50, precision, device)
            )


if __name__ == "__main__":
    main()
