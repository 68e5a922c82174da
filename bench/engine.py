"""Images per second of whole training steps on one accelerator: G clients stacked, against one by one and one model.

A step is everything between stored bytes and moved weights: gather, crop, mirror, normalise, forward, loss, backward,
SGD with momentum. Rows of one network come from one process: `stacked` (G clients, batch 50), `one by one` (the plain
eager path, one client), `centralised` (one model of the same network on G × 50 images a step, by the same code).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

from torso.data.augment import Lens, augmentations
from torso.data.batches import Deck, Shuffle
from torso.fast import plain_path
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.recorded import Recorder
from torso.learn.sgd import Sgd
from torso.nets import LinearHead, build, learnable, set_modes, skeleton
from torso.precision import Precision, activation_type, computing

CUDA = torch.device("cuda")
Row = dict[str, Any]


def steps(
    body: str,
    clients: int,
    batch: int,
    precision: str,
    *,
    recorded: bool = True,
    plain: bool = False,
    ragged: bool = False,
) -> Callable[[], None]:
    """A function that takes one training step of `clients` stacked models; epoch after epoch over random images."""
    torch.backends.cudnn.benchmark = True
    each = 4 * batch
    generator = torch.Generator(CUDA).manual_seed(0)
    images = torch.randint(0, 256, (clients * each, 32, 32, 3), dtype=torch.uint8, device=CUDA, generator=generator)
    labels = torch.randint(0, 10, (clients * each,), device=CUDA, generator=generator)
    sizes = [each - (7 * k % batch if ragged else 0) for k in range(clients)]
    rows = [torch.arange(k * each, k * each + size, device=CUDA) for k, size in enumerate(sizes)]
    deck = Deck.of(images, labels, rows, range(clients))
    lens = Lens.of((0.5,) * 3, (0.25,) * 3, CUDA)
    lens = Lens(lens.mean, lens.std, activation_type(precision))
    whole = build(body, 10, (3, 32, 32), LinearHead(), seed=0)
    net, names = skeleton(whole), learnable(whole, whole.state_dict())
    set_modes(net, names)
    recorder, counts = Recorder(gradients), deck.class_counts(10)
    tensors = {n: t.to(CUDA).expand(clients, *t.shape).contiguous() for n, t in whole.state_dict().items()}
    tensors = recorder.home(tensors, batch)
    sgd, rates, objective = Sgd(0.9, 0.0), dict.fromkeys(names, 0.01), CrossEntropy()
    take = recorder.gradients if recorded else gradients

    def forever() -> Any:
        epoch = 0
        while True:
            yield from deck.shuffled(batch, lens, Shuffle(0, "bench", 0), epoch, augmentations["crop-flip"])
            epoch += 1

    batches = forever()

    def step() -> None:
        with computing(precision), plain_path() if plain else nullcontext():
            dealt = next(batches)
            grads, _ = take(net, tensors, names, dealt, objective, counts)
            sgd.step(tensors, grads, rates, dealt.active)

    return step


def rate(step: Callable[[], None], images: int, windows: int = 5, seconds: float = 0.4) -> Row:
    """Images/s: the median of some windows, their range, and the seconds until the first steps were done."""
    began = time.perf_counter()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    warm = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    count = max(4, int(seconds / ((time.perf_counter() - began) / 4)))
    found = []
    for _ in range(windows):
        began = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        found.append(images * count / (time.perf_counter() - began))
    row = {"images_per_s": round(median(found)), "low": round(min(found)), "high": round(max(found)), "n": windows}
    return row | {"warm_up_s": round(warm, 1), "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}


def measure(body: str, clients: int, batch: int = 50, precision: Precision = "bf16", what: str = "stacked") -> Row:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    made = {
        "stacked": lambda: (steps(body, clients, batch, precision), clients * batch),
        "stacked, ragged": lambda: (steps(body, clients, batch, precision, ragged=True), clients * batch),
        "stacked, not recorded": lambda: (steps(body, clients, batch, precision, recorded=False), clients * batch),
        "one by one": lambda: (steps(body, 1, batch, precision, recorded=False, plain=True), batch),
        "centralised": lambda: (steps(body, 1, clients * batch, precision), clients * batch),
        "centralised, eager": lambda: (
            steps(body, 1, clients * batch, precision, recorded=False, plain=True),
            clients * batch,
        ),
    }
    step, images = made[what]()
    return {"body": body, "clients": clients, "precision": precision, "what": what} | rate(step, images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", default="conv4,mobilenet")
    parser.add_argument("--clients", default="10,100")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--what", default="stacked;one by one;centralised")
    options = parser.parse_args()
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    for body in options.bodies.split(","):
        for clients in map(int, options.clients.split(",")):
            for what in options.what.split(";"):
                print(json.dumps(measure(body, clients, 50, options.precision, what)), flush=True)


if __name__ == "__main__":
    main()
