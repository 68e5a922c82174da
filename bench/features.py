"""Linear probing on features that are computed once, against the same run that computes them every time.

    python bench/features.py [--root FOLDER] [--size 128] [--limit 0] [--rounds 200] [--json FILE]

EfficientNet-lite0 with ImageNet's weights on CIFAR-10, 100 clients, Dirichlet 0.1. Rows:

    plain loop   features of all images in a plain loop, batches of 512
    once         `torso run` with method lp, run.features = auto: all rounds and the measures at the end
    from a file  the same with run.features = disk, after another run has written the file
    every time   run.features = off: `--whole` rounds are run; shown is the time of a round times `--rounds`

FedNCM's opening and its measures follow, in the same ways. For a quick try on a CPU:
`--size 32 --limit 400 --rounds 6 --clients 6`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from efficientnet_lite import MEAN, NAME, STD
from torso import Config, run
from torso.data import Federation
from torso.data.images import Dataset, Labelled, as_images
from torso.data.sources import sources
from torso.engine import features_kept
from torso.engine.bench import wait
from torso.engine.feature_files import CACHE
from torso.nets import bodies
from torso.runs.job import data_of

Row = dict[str, Any]
SOURCE = "cifar10-resized"
ONCE = ("initial", "without_head", "generic")


def register_source(size: int, limit: int) -> None:
    """Register a source: CIFAR-10 with `limit` images of each split (0: all), resized once."""

    def resized(part: Labelled, most: int) -> Labelled:
        some = part.take(np.random.default_rng(0).permutation(len(part))[: most or None])
        images, made = torch.from_numpy(some.samples), []
        for chunk in images.split(1000):
            scaled = F.interpolate(chunk.movedim(-1, 1).float(), (size, size), mode="bilinear", antialias=True)
            made.append(scaled.round().clamp(0, 255).to(torch.uint8).movedim(1, -1).contiguous())
        return as_images("CIFAR-10", torch.cat(made).numpy(), some.labels)

    @sources.register(SOURCE)
    def load(options: Any, seed: int) -> Dataset:
        whole = sources["cifar10"](options, seed)
        train, test = resized(whole.train, limit), resized(whole.test, limit // 5)
        return replace(whole, train=train, test=test, mean=MEAN, std=STD, augment="none", input=None)


def config(args: argparse.Namespace, method: str, features: str, rounds: int) -> Config:
    return Config(
        data={
            "source": SOURCE,
            "root": args.root,
            "clients": args.clients,
            "partition": "dirichlet-client",
            "alpha": 0.1,
        },
        model={"body": NAME},
        method=method,
        train={"rounds": rounds, "local_epochs": 1, "fraction": args.fraction, "lr": 0.01, "batch_size": 64},
        measure={"names": ONCE, "batch_size": 500},
        personalize={"part": "head", "epochs": 1},
        run={"features": features, "device": args.device},
    )


def measured(args: argparse.Namespace, data: Federation, method: str, features: str, rounds: int) -> Row:
    """A run, its wall time, and the peak memory of the device."""
    features_kept._kept.clear()  # as in a process of its own
    if data.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    result = run(config(args, method, features, rounds), federation=data)
    wait(data.device)
    seconds = time.perf_counter() - began
    found = {name: round(value.mean, 2) for name, value in result.accuracy.items()}
    peak = torch.cuda.max_memory_allocated() / 2**30 if data.device.type == "cuda" else None
    return {
        "seconds": seconds,
        **{k: v for k, v in result.seconds.items() if k != "total"},
        "accuracy": found,
        "GiB": peak,
    }


@torch.no_grad()
def plain_loop(data: Federation, layout: torch.memory_format) -> float:
    """Seconds of a pass over all images in a plain loop, after a few batches to warm up."""
    body = bodies[NAME](*data.input.shape).module.to(data.device, memory_format=layout).eval()  # type: ignore[attr-defined]
    mean, std = (torch.tensor(each, device=data.device).view(-1, 1, 1) for each in (MEAN, STD))

    def go(images: torch.Tensor) -> None:
        for batch in images.split(512 if data.device.type == "cuda" else 64):
            body((batch.movedim(-1, 1).float() / 255 - mean).div(std).contiguous(memory_format=layout))

    go(data.train.samples[:1536])
    wait(data.device)
    began = time.perf_counter()
    for split in (data.train, data.test):
        go(split.samples)
    wait(data.device)
    return time.perf_counter() - began


def rows_of(args: argparse.Namespace) -> Row:
    register_source(args.size, args.limit)
    began = time.perf_counter()
    data = data_of(config(args, "lp", "auto", 1))
    read = time.perf_counter() - began
    layouts = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
    loops = {name: plain_loop(data, layout) for name, layout in layouts.items()}
    measured(args, data, "lp", "off", 1)  # libraries warm up
    whole = measured(args, data, "lp", "off", args.whole)
    once = {"once": measured(args, data, "lp", "auto", args.rounds)}
    measured(args, data, "lp", "disk", 1)
    once["from a file"] = measured(args, data, "lp", "disk", args.rounds)
    ncm = {features: measured(args, data, "fedncm", features, 1) for features in ("off", "auto")}
    every = whole["train"] / args.whole * args.rounds + whole["measure"]
    images = len(data.train.labels) + len(data.test.labels)
    return {
        "images": images,
        "read_s": read,
        "feature_MiB": images * 1280 * 4 / 2**20,
        "plain_loop_s": loops,
        "once": once,
        "every_time": {**whole, "rounds": args.whole, "scaled_s": every},
        "fedncm": ncm,
        "ratio": every / (once["once"]["train"] + once["once"]["measure"]),
        "ratio_fedncm": ncm["off"]["seconds"] / ncm["auto"]["seconds"],
        "against_one_pass": once["once"]["seconds"] / min(loops.values()),
    }


def shown(found: Row, args: argparse.Namespace) -> str:
    def line(what: str, seconds: float, said: str) -> str:
        return f"{what:<26} {seconds:9.2f} s  {said}"

    def run_line(what: str, row: Row, seconds: float | None = None) -> str:
        memory = "" if row["GiB"] is None else f", at most {row['GiB']:.2f} GiB"
        return line(what, row["seconds"] if seconds is None else seconds, f"{row['accuracy']}{memory}")

    every, images = found["every_time"], found["images"]
    lines = [
        f"{images:,} images of {args.size}×{args.size}, {args.clients} clients, fraction {args.fraction}, "
        f"{args.rounds} rounds; features take {found['feature_MiB']:.0f} MiB",
        *(line(f"plain loop, {name}", s, f"{images / s:.0f} images/s") for name, s in found["plain_loop_s"].items()),
        *(run_line(f"lp, {name}", row) for name, row in found["once"].items()),
        run_line(f"lp, every time ({every['rounds']} rounds)", every),
        run_line(f"lp, every time ({args.rounds} rounds)", every, every["scaled_s"]),
        *(run_line(f"fedncm, features={name}", row) for name, row in found["fedncm"].items()),
        f"lp: {found['ratio']:.1f} times faster; {found['against_one_pass']:.2f} times one pass of a plain loop; "
        f"fedncm: {found['ratio_fedncm']:.1f} times faster",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="folder with CIFAR-10")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--limit", type=int, default=0, help="training images; 0: all")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--whole", type=int, default=2, help="rounds that are run with features computed every time")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ[CACHE] = cache
        found = rows_of(args)
    print(shown(found, args))
    if args.json:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"
        machine = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
        args.json.write_text(
            json.dumps({"machine": machine, "options": {**vars(args), "json": None}, **found}, indent=1)
        )


if __name__ == "__main__":
    main()
