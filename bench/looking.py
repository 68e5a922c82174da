"""The cost of evaluation in float32 on CUDA, for each way in which convolutions can be computed.

Two evaluations: the generic model of `torso bench pfl` on 10,000 images, and conv4 of 100 clients on 100 images each.
For each way: milliseconds (median), and the largest error of the logits against float64, over their largest value. The
defaults of `torso.nets.layers.ALONE`, `torso.nets.kernels.ways.EXACT` and `torso.fast.EXACT` follow from this table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from torso import Config
from torso.engine import Workspace
from torso.fast import plain_path
from torso.learn import outputs
from torso.learn.outputs import look, outputs_by_row, samples_per_pass
from torso.nets import Tensors
from torso.precision import computing
from torso.report.pfl_bench import pfl_config
from torso.runs.job import Simulation, simulate

OWN = 1 << 30  # no layer has so many channels


@contextmanager
def switched(alone: int, exact: str, products: str, benchmark: bool, at_once: int) -> Iterator[None]:
    from torso.nets.kernels import ways

    with ExitStack() as stack:
        stack.enter_context(patch("torso.nets.layers.ALONE", alone))
        stack.enter_context(patch.object(ways, "EXACT", exact))
        stack.enter_context(patch("torso.fast.EXACT", products))
        stack.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = benchmark
        stack.enter_context(patch.object(outputs, "_AT_ONCE", at_once * 3 * 32 * 32))
        yield


WAYS: dict[str, tuple[int, str, str, bool, int]] = {
    "as it is": (16, "box", "ieee", False, 2048),
    "cudnn.benchmark": (16, "box", "ieee", True, 2048),
    "8,192 at once": (16, "box", "ieee", False, 8192),
    "own, box": (OWN, "box", "ieee", False, 2048),
    "own, columns": (OWN, "columns", "ieee", False, 2048),
    "own, columns, 8,192": (OWN, "columns", "ieee", False, 8192),
    "own, tf32x3": (OWN, "box", "tf32x3", False, 2048),
}


def pfl_look() -> tuple[Simulation, Callable[[Workspace, Tensors], torch.Tensor]]:
    job = simulate(pfl_config("synthetic", "", 1, "fp32", "cuda", 0).but("data.synthetic.test_samples=10000"))

    def say(workspace: Workspace, model: Tensors) -> torch.Tensor:
        deck = workspace.test_stretches(range(79), 128)
        one = {n: t.unsqueeze(0) for n, t in model.items()}
        return torch.cat([said.logits.flatten(0, 1) for _, said in outputs_by_row(workspace.context, deck, one, 128)])

    return job, say


def clients_look() -> tuple[Simulation, Callable[[Workspace, Tensors], torch.Tensor]]:
    size = {"samples": 10000, "test_samples": 10000, "size": 32, "channels": 3}
    data = {"source": "synthetic", "clients": 100, "partition": "iid", "synthetic": size}
    job = simulate(Config(data=data, model={"body": "conv4"}, run={"device": "cuda", "precision": "fp32"}))

    def say(workspace: Workspace, model: Tensors) -> torch.Tensor:
        deck = workspace.test_deck(range(100))
        many = samples_per_pass(workspace.context, deck, 128)
        models = {n: t.unsqueeze(0).repeat(100, *[1] * t.ndim) for n, t in model.items()}
        return torch.cat(
            [s.logits for _, s in look(workspace.context, deck.in_order(many, workspace.context.lens), models, many)], 1
        )

    return job, say


@torch.no_grad()
def measure(name: str, repeats: int, budget: float) -> list[dict[str, Any]]:
    job, say = pfl_look() if name == "pfl" else clients_look()
    workspace, began = Workspace.at(job.net, job.federation, "fp32", True), time.perf_counter()
    model = {n: t.cuda() for n, t in job.model.items()}
    with plain_path(), computing("fp32"):
        wanted = in_double(workspace, model, say)
    rows = []
    for way, switches in WAYS.items():
        if time.perf_counter() - began > budget:
            break
        row: dict[str, Any] = {"look": name, "way": way}
        try:
            with switched(*switches):
                found = say(workspace, model)
                row["error"] = float((found.double() - wanted).abs().max() / wanted.abs().max())
                row["ms"] = round(1e3 * timed(lambda: say(workspace, model), repeats), 2)
        except Exception as error:  # the others count all the same
            row["failed"] = f"{type(error).__name__}: {error}"[:200]
        rows.append(row)
        print(row, flush=True)
    return rows


def in_double(workspace: Workspace, model: Tensors, say: Callable[[Workspace, Tensors], torch.Tensor]) -> torch.Tensor:
    seen = type(workspace.context.lens).look
    with patch.object(type(workspace.context.lens), "look", lambda *args: seen(*args).double()):
        return say(workspace, {n: t.double() if t.is_floating_point() else t for n, t in model.items()})


def timed(work: Callable[[], object], repeats: int) -> float:
    took = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return median(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=float, default=14, help="seconds of a look after which no way is begun")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in ("pfl", "clients"):
        try:
            rows += measure(name, options.repeats, options.budget)
        except Exception as error:
            print(name, type(error).__name__, error, flush=True)
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "n": options.repeats}
    print(json.dumps({"machine": machine, "rows": rows}))


if __name__ == "__main__":
    main()
