"""Measure the images per second of whole training steps: G stacked clients, one by one, and one centralised model.

A step is everything between stored bytes and updated weights: gather, crop, mirror, normalise, forward, loss, backward,
SGD with momentum. All rows of one network come from one process: `stacked` (G clients, batch 50), `one by one` (the
plain eager path, one client), `centralised` (one model of the same network on G × 50 images a step, by the same code).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from torso.data.augment import PixelLens, augmentations
from torso.data.batches import Deck, Shuffle
from torso.fast import plain_path
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.recorded import Recorder
from torso.learn.sgd import Sgd
from torso.nets import LinearHead, Network, apply, build, learnable, set_modes, skeleton
from torso.nets.blocks import Unit
from torso.nets.flops import step_flops
from torso.precision import Precision, activation_type, computing, precision_of

Row = dict[str, Any]
_CLASSES = 10


def measure_engine(bodies: list[str], clients: list[int], batch: int, precision: str, device: torch.device) -> Row:
    """What `torso bench engine` prints: the machine, its ceilings, and one row per measurement."""
    exact = precision_of(precision, device)
    rows = []
    for body in bodies:
        alone = row(body, 1, batch, exact, device, "one by one", recorded=False, plain=True)
        rows.append(alone)
        for count in clients:
            stacked = row(body, count, batch, exact, device, "stacked")
            large = row(body, 1, count * batch, exact, device, "centralised")
            for found in (stacked, large):
                found["times_one_by_one"] = round(found["images_per_s"] / alone["images_per_s"], 2)
            stacked["times_centralised"] = round(stacked["images_per_s"] / large["images_per_s"], 2)
            rows += [stacked, large]
    return {"machine": _machine(device), "precision": exact, "batch": batch, "rows": rows}


def _machine(device: torch.device) -> Row:
    """The machine's name, versions, and the two rates that limit a step: copying memory and multiplying matrices."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, CPU"
    size = 2**28 if device.type == "cuda" else 2**24
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = per_second(lambda: target.copy_(source), device) * 2 * size
    side, kind = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    factor = torch.ones(side, side, dtype=kind, device=device)
    multiplied = per_second(lambda: factor @ factor, device) * 2 * side**3
    return {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "copy_GB_per_s": round(copied / 1e9),
        "matrix_TFLOP_per_s": round(multiplied / 1e12, 2),
    }


def row(
    body: str,
    clients: int,
    batch: int,
    precision: Precision,
    device: torch.device,
    what: str,
    *,
    recorded: bool = True,
    plain: bool = False,
    size: int = 32,
) -> Row:
    """One measurement (n = 3) of the training steps of a network on images of size × size pixels."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    step = steps(body, clients, batch, precision, device, recorded=recorded, plain=plain, size=size)
    for _ in range(2):
        step()
    wait(device)
    warm = time.perf_counter() - began
    found = [per_second(step, device) * clients * batch for _ in range(3)]
    made: Row = {"body": body, "what": what, "clients": clients, "batch": batch, "images_per_s": round(median(found))}
    made |= {"low": round(min(found)), "high": round(max(found)), "n": len(found), "warm_up_s": round(warm, 1)}
    image = (3, size, size)
    net = build(body, _CLASSES, image, LinearHead(), seed=0)
    flops_per_image = step_flops(net, image, 2, learnable(net, net.state_dict())) / 2
    made["TFLOP_per_s"] = round(median(found) * flops_per_image / 1e12, 2)
    bytes_per_image = step_bytes(net, image, batch, activation_type(precision).itemsize)
    made["GB_per_s"] = round(median(found) * bytes_per_image / 1e9)
    if device.type == "cuda":
        made["GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return made


def step_bytes(net: Network, image: tuple[int, int, int], batch: int, width: int) -> float:
    """The bytes that a training step must move through memory per image. `width`: bytes of an activation.

    The least that its kernels need. For a unit of convolution (x → y), BatchNorm, ReLU and pool (y → z): x is read
    twice (for y, and for the weight's gradient) and its gradient is written; y is written and read, read twice in the
    backward pass (sums, then gradients), its gradient is written and read twice; z is written, its gradient is read
    twice. A parameter is read twice and its gradient is written. SGD reads weight, gradient and velocity, and writes
    weight and velocity. Parameters count in float32 and once per batch."""
    moved: int = 0

    def conv(_: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
        nonlocal moved
        moved += 3 * given[0].numel() + 7 * y.numel()

    def unit(_: nn.Module, __: tuple[Tensor, ...], z: Tensor) -> None:
        nonlocal moved
        moved += 3 * z.numel()

    bare = skeleton(net).to("meta").eval()
    for module in bare.modules():
        if isinstance(module, nn.Conv2d | Unit):
            module.register_forward_hook(conv if isinstance(module, nn.Conv2d) else unit)
    tensors = {name: tensor.unsqueeze(0) for name, tensor in bare.state_dict().items()}
    apply(bare, tensors, torch.empty(1, 1, *image, device="meta"))
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return float(moved * width + 8 * 4 * parameters / batch)


def per_second(work: Callable[[], Any], device: torch.device, seconds: float = 0.3) -> float:
    """Calls per second of a function. A short trial decides how many calls take about `seconds`."""
    work()
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    count = max(2, int(seconds / max(time.perf_counter() - began, 1e-6)))
    began = time.perf_counter()
    for _ in range(count):
        work()
    wait(device)
    return count / (time.perf_counter() - began)


def wait(device: torch.device) -> None:
    """Wait until the device has finished all work that was queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def steps(
    body: str,
    clients: int,
    batch: int,
    precision: Precision,
    device: torch.device,
    *,
    recorded: bool = True,
    plain: bool = False,
    size: int = 32,
) -> Callable[[], None]:
    """A function that takes one training step of `clients` stacked models, epoch after epoch, on random images."""
    each = 4 * batch
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randint(
        0, 256, (clients * each, size, size, 3), dtype=torch.uint8, device=device, generator=generator
    )
    labels = torch.randint(0, _CLASSES, (clients * each,), device=device, generator=generator)
    rows = [torch.arange(k * each, (k + 1) * each, device=device) for k in range(clients)]
    deck = Deck.of(images, labels, rows, range(clients))
    lens = replace(PixelLens.of((0.5,) * 3, (0.25,) * 3, device), dtype=activation_type(precision))
    whole = build(body, _CLASSES, (3, size, size), LinearHead(), seed=0)
    net, names = skeleton(whole), learnable(whole, whole.state_dict())
    set_modes(net, names)
    counts = deck.class_counts(_CLASSES)
    tensors = {n: t.to(device).expand(clients, *t.shape).contiguous() for n, t in whole.state_dict().items()}
    recorder = Recorder(gradients) if recorded and device.type == "cuda" else None
    tensors = tensors if recorder is None else recorder.home(tensors, batch)
    sgd = Sgd(0.9, 0.0)
    rates = dict.fromkeys(names, 0.01)
    objective = CrossEntropy()
    take = gradients if recorder is None else recorder.gradients

    batches = deck.endless(batch, lens, Shuffle(0, "bench", 0), augmentations["crop-flip"])

    def step() -> None:
        with computing(precision), plain_path() if plain else nullcontext():
            dealt = next(batches)
            grads, _ = take(net, tensors, names, dealt, objective, counts)
            sgd.step(tensors, grads, rates, dealt.active)

    return step
