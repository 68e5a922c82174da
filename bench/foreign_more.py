"""Two further parts of bench/foreign.py: whole rounds, and clients of a network with BatchNorm in one stack."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

import torso
from torso.precision import Precision, computing

BATCH, CLASSES = 50, 10


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def whole_run(
    make: Callable[[int], nn.Module], size: int, precision: Precision, device: torch.device, images: int
) -> dict[str, float]:
    """Rounds of 10 clients, Torso against the loop with a model of its own for each client; images per second."""
    clients, noise = 10, torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (clients * images, size, size, 3), dtype=torch.uint8, generator=noise).numpy()
    labels = torch.randint(0, CLASSES, (clients * images,), generator=noise).numpy()
    own = [(pixels[k::clients], labels[k::clients]) for k in range(clients)]
    each, loop = clients * images, loop_rounds(make(size), own, precision, device)
    found = {"loop": each / loop}
    for compile in ("off", "on"):
        ends = [time.perf_counter()]

        def note(*_: Any, ends: list[float] = ends) -> None:
            wait(device)
            ends.append(time.perf_counter())

        config = {
            "method": "fedavg",
            "train": {"rounds": 4, "local_epochs": 1, "fraction": 1.0, "batch_size": BATCH, "lr": 1e-4},
            "measure": {"names": ["initial"], "every": 0},
            "run": {"device": device.type, "precision": precision, "workers": 1, "compile": compile},
        }
        config["train"]["momentum"] = 0.9  # type: ignore[index]
        torso.run(config, clients=own, model=make(size), on_round=note)
        rounds = [b - a for a, b in pairwise(ends)]
        found |= {
            f"compile {compile}, first round, s": rounds[0],
            f"compile {compile}, further rounds": each / median(rounds[1:]),
            f"compile {compile}, ratio": loop / median(rounds[1:]),
        }
    return {name: round(value, 3) for name, value in found.items()}


def loop_rounds(module: nn.Module, own: list[tuple[Any, Any]], precision: Precision, device: torch.device) -> float:
    """Seconds of a round of FedAvg in plain PyTorch: the median of three after a first one."""
    module = module.to(device)
    data = [(torch.from_numpy(x.copy()).to(device), torch.from_numpy(y.copy()).to(device)) for x, y in own]
    spent = []
    for _ in range(4):
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
        spent.append(time.perf_counter() - began)
    return median(spent[1:])


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


def stacked_clients(
    module: nn.Module, size: int, precision: Precision, device: torch.device, clients: int = 10
) -> dict[str, float]:
    """Milliseconds of the gradients of ten clients' batches: under vmap (weights, and BatchNorm's buffers, stacked),
    and one after the other; both replayed as a CUDA graph where that works. Then how far apart they are."""
    module = module.to(device).train()
    names = [n for n, _ in module.named_parameters()]
    stacked = {n: t.detach().expand(clients, *t.shape).clone() for n, t in module.state_dict().items()}
    x = torch.randn(clients, BATCH, 3, size, size, device=device)
    y = torch.randint(0, CLASSES, (clients, BATCH), device=device)

    def together() -> list[Tensor]:
        leaves = {n: stacked[n].detach().requires_grad_() for n in names}
        said = vmap(lambda t, each: functional_call(module, t, (each,)))({**stacked, **leaves}, x)
        loss = F.cross_entropy(said.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
        return list(torch.autograd.grad(loss, list(leaves.values())))

    def in_turn() -> list[Tensor]:
        return [torch.stack(each) for each in zip(*(alone(k) for k in range(clients)), strict=True)]

    def alone(k: int) -> tuple[Tensor, ...]:
        leaves = {n: stacked[n][k].detach().requires_grad_() for n in names}
        said = functional_call(module, {**{n: t[k] for n, t in stacked.items()}, **leaves}, (x[k],))
        return torch.autograd.grad(F.cross_entropy(said, y[k]), list(leaves.values()))

    with computing(precision):
        first, second = together(), in_turn()
        apart = max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(first, second, strict=True))
        del first, second
        found = {"furthest apart": apart, "vmap, ms": _milliseconds(together, device)}
        found["one by one, ms"] = _milliseconds(in_turn, device)
    return {name: round(value, 4) for name, value in found.items()}


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Median of five, replayed on CUDA."""
    run = work
    if device.type == "cuda":
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        run = graph.replay
    spent = []
    for _ in range(6):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        spent.append(1e3 * (time.perf_counter() - began))
    return median(spent[1:])
