"""Where a round of `torso bench pfl` spends the device's time: its kernels, and a lower bound for a round.

    python bench/pfl_profile.py --root FOLDER [--rounds 60] [--out FILE]

The lower bound is the time to move the dense layer's weights at the rate of a copy on this device, and the time of the
convolutions' products at the rate of a large product. Every client has its own weights: a step reads them forward and
backward and writes a gradient, and SGD reads both and writes the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torso.report.pfl_bench import SAMPLES, pfl_config
from torso.runs.events import ForwardingListener, Listener
from torso.runs.job import data_of, simulate
from torso.runs.run import run

if TYPE_CHECKING:
    from torso.measure import Accuracy
    from torso.runs.rounds import Round

STEPS, AT_ONCE = 5, 50
BYTES_A_WEIGHT = 4 * 6  # float32: read forward, read back, gradient written, then SGD reads both and writes one


class Stretch(ForwardingListener):
    """A listener that profiles the rounds from `first` to `last`, in which nothing is measured."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(Listener())
        self.first, self.last = first, last
        self.profile = torch.profiler.profile()
        self.seconds: list[float] = []

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.round == self.last:
            torch.cuda.synchronize()
            self.profile.stop()
        if self.first < round.round <= self.last:
            self.seconds.append(seconds)
        if round.round == self.first:
            torch.cuda.synchronize()
            self.profile.start()


def milliseconds(work: torch.cuda.CUDAGraph, repeats: int = 20) -> float:
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    work.replay()
    began.record()
    for _ in range(repeats):
        work.replay()
    ended.record()
    torch.cuda.synchronize()
    return began.elapsed_time(ended) / repeats


def recorded(work: torch.Tensor, other: torch.Tensor, product: bool) -> torch.cuda.CUDAGraph:
    out = work @ other if product else torch.empty_like(work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(work, other, out=out) if product else out.copy_(work)
    return graph


def rates() -> tuple[float, float]:
    """Bytes per second of a copy, and operations per second of a large bf16 product."""
    source = torch.randn(1 << 28, device="cuda")
    copied = 2 * source.numel() * 4 / (1e-3 * milliseconds(recorded(source, source, product=False)))
    side = 8192
    square = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
    return copied, 2 * side**3 / (1e-3 * milliseconds(recorded(square, square, product=True)))


def floor() -> str:
    """The lower bounds for a round, by its weights and by its products."""
    model = simulate(pfl_config("synthetic", "", 1, "fp32", "cpu", 0)).model
    weights = sum(prod(tensor.shape) for tensor in model.values())
    moved = weights * AT_ONCE * STEPS * BYTES_A_WEIGHT
    shapes = ((30, 27, 32), (28, 288, 64))  # side of the map, values that a pixel sees, channels
    products = 3 * 2 * sum(side**2 * seen * channels for side, seen, channels in shapes) * AT_ONCE * SAMPLES
    copied, large = rates()
    weighed = f"{weights:,} weights a client, {AT_ONCE} clients, {STEPS} steps: {moved / 1e9:.1f} GB a round"
    at_best = f"at {copied / 1e9:,.0f} GB/s {1e3 * moved / copied:.2f} ms"
    multiplied = (
        f"convolutions {products / 1e9:.0f} GFLOP, at {large / 1e12:.0f} TFLOP/s {1e3 * products / large:.2f} ms"
    )
    return f"{weighed}, {at_best}; {multiplied}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--out", type=Path)
    said = parser.parse_args()
    config = pfl_config("cifar10", said.root, said.rounds, said.precision, "cuda", 0)
    stretch = Stretch(said.rounds - 9, said.rounds - 1)
    run(config, federation=data_of(config), listener=stretch)
    table = stretch.profile.key_averages()
    kernels = sorted((row for row in table if row.self_device_time_total), key=lambda row: -row.self_device_time_total)
    rounds = len(stretch.seconds)
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {said.precision}"
    lines = [f"{machine}, {rounds} rounds under the profiler"]
    whole = sum(row.self_device_time_total for row in kernels)
    lines.append(f"kernels {whole / 1e3 / rounds:.2f} ms a round of {1e3 * sum(stretch.seconds) / rounds:.2f}")
    for row in kernels[:24]:
        spent = row.self_device_time_total / 1e3 / rounds
        lines.append(f"{spent:8.3f} ms {row.count / rounds:7.1f} launches  {row.key[:100]}")
    lines.append(floor())
    print("\n".join(lines))
    if said.out is not None:
        said.out.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
