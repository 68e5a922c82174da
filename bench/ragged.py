"""Visits of clients of unequal size in one stack: sorted by number of steps, against their own order.

    python bench/ragged.py [--device cuda] [--json FILE]

Sizes come from a Dirichlet partition of CIFAR-10's class counts over 100 clients; images are random. A ratio is of two
measurements that take turns in this process.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from torso.data.augment import PixelLens, augmentations
from torso.data.batches import Deck, Shuffle
from torso.engine.bench import wait
from torso.learn.gradients import gradients
from torso.learn.local import learn
from torso.learn.phases import LocalPhase
from torso.learn.recorded import Recorder
from torso.learn.steps import LocalSettings
from torso.learn.task import LocalContext, LocalTask
from torso.nets import LinearHead, build, learnable, skeleton
from torso.precision import precision_of

ROUNDS = 5


def sizes(clients: int, alpha: float) -> list[int]:
    """The sizes of the given number of clients, from runs of 100 clients of which ten take part."""
    draw, found = np.random.default_rng(0), list[int]()
    while len(found) < clients:
        shares = draw.dirichlet([alpha] * 100, 10) * 5_000
        found += draw.choice(shares.sum(0).astype(int).clip(10), 10, replace=False).tolist()
    return found[:clients]


def visit(body: str, counts: list[int], device: torch.device, precision: str) -> LocalTask:
    whole, total = build(body, 10, (3, 32, 32), LinearHead(), seed=0), sum(counts)
    images = torch.randint(0, 256, (total, 32, 32, 3), dtype=torch.uint8, device=device)
    deck = Deck.of(
        images,
        torch.randint(0, 10, (total,), device=device),
        list(torch.split(torch.arange(total, device=device), counts)),
        range(len(counts)),
    )
    context = LocalContext(
        net=skeleton(whole),
        classes=10,
        lens=PixelLens.of((0.5,) * 3, (0.25,) * 3, device),
        change=augmentations["crop-flip"],
        skip_single=False,
        precision=precision_of(precision, device),
        recorder=Recorder(gradients) if device.type == "cuda" else None,
    )
    names = learnable(whole, whole.state_dict())
    plan = (LocalPhase(1, dict.fromkeys(names, 0.01), frozenset(whole.state_dict())),)
    return LocalTask(context, deck, plan, LocalSettings(50, momentum=0.9), Shuffle(0, "bench", 0))


def rate(task: LocalTask, device: torch.device) -> float:
    """Images per second of the clients' own data; padding and clients that have finished do not count."""
    models = some_models(task, device)
    began = 0.0
    for number in range(ROUNDS + 1):
        if number == 1:  # the first compiles and records
            wait(device)
            began = time.perf_counter()
        learn(task, models)
    wait(device)
    return ROUNDS * sum(task.deck.sizes) / (time.perf_counter() - began)


def some_models(task: LocalTask, device: torch.device) -> dict[str, torch.Tensor]:
    state = task.context.net.state_dict()
    clients = len(task.deck.sizes)
    return {n: torch.randn(clients, *t.shape, device=device) * 0.05 for n, t in state.items()}


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    said.add_argument("--precision", default="bf16" if torch.cuda.is_available() else "fp32")
    said.add_argument("--bodies", default="conv4,rod-cifar,mobilenet")
    said.add_argument("--clients", default="10,30,120")
    said.add_argument("--json", type=Path)
    options = said.parse_args()
    device, found = torch.device(options.device), list[dict[str, Any]]()
    for body in options.bodies.split(","):
        for clients in map(int, options.clients.split(",")):
            counts = sizes(clients, 0.3)
            task = visit(body, counts, device, options.precision)
            with patch.object(Deck, "longest_first", lambda *_: None):
                before = rate(task, device)
            after = rate(task, device)
            found.append({"body": body, "clients": clients, "as_they_come": before, "longest_first": after})
            print(f"{body:10} {clients:4} clients  {before:12,.0f}  {after:12,.0f} images/s  {after / before:.2f}")
    if options.json:
        options.json.write_text(
            json.dumps({"torch": torch.__version__, "device": str(device), "rows": found}, indent=1)
        )


if __name__ == "__main__":
    main()
