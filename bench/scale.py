"""Computed bytes, memory and seconds of a round on many accelerators: the tables of docs/scale.md.

    python bench/scale.py            # rewrites the text between the markers of docs/scale.md

They follow from the driver's costs that bench/cluster.py has measured (bench/cluster.json), and from the rates of one
accelerator that bench/accelerator.py has measured (bench/engine.json).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torso.nets import LinearHead, Network, build, learnable
from torso.nets.flops import step_flops

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"
CLASSES, IMAGE = 10, (3, 32, 32)
SAMPLES, EPOCHS = 500, 1  # of a participant: 500 images of 32×32×3 (CIFAR-10 over 100 clients), one epoch, batch 50
LINK = 1.25e9  # bytes a second between machines: 10 Gbit/s, an assumption
PARTICIPANTS, ACCELERATORS = (10**3, 10**5, 10**6), (1, 8, 64)
BODIES = ("conv4", "mobilenet", "resnet18")


@dataclass(frozen=True)
class Costs:
    """The costs of the driver, in seconds."""

    round_s: float
    client_s: float  # of a participant that keeps nothing
    keeping_client_s: float  # of one that keeps a head of two tensors
    model_MB_and_worker_s: float
    kept_MB_s: float

    def keeping(self, kept: float) -> float:
        """The driver's seconds for a participant that keeps this many megabytes."""
        return self.keeping_client_s + self.kept_MB_s * kept


def network(body: str) -> Network:
    return build(body, CLASSES, IMAGE, LinearHead(), seed=0)


def flops(net: Network) -> float:
    """Operations of an image in a training step."""
    return step_flops(net, IMAGE, 50, learnable(net, net.state_dict())) / 50


@cache
def stack(body: str) -> tuple[int, float]:
    """The clients of the largest stack that was measured in bf16, and its images per second."""
    found = json.loads((ROOT / "bench" / "engine.json").read_text(encoding="utf-8"))[f"engine-{body}-bf16"]
    return max((row["clients"], float(row["images_per_s"])) for row in found["rows"] if row["what"] == "stacked")


def rate(body: str) -> float:
    return stack(body)[1]


def megabytes(net: Network, part: str = "") -> float:
    held = (t for name, t in net.state_dict().items() if name.startswith(part))
    return sum(t.numel() * t.element_size() for t in held) / 1e6


def number(value: float) -> str:
    """A number with three digits."""
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if value >= 100 else f"{float(digits):g}"


def table(rows: list[dict[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rounds(costs: Costs) -> Iterator[dict[str, str]]:
    """Table rows: a round of FedAvg (clients keep nothing) by number of accelerators, with one worker each and two
    copies of a sum in transit."""
    for body in BODIES:
        net = network(body)
        model, images = megabytes(net), SAMPLES * EPOCHS / rate(body)
        for many in PARTICIPANTS:
            for workers in ACCELERATORS:
                train = many * images / workers
                wire = 2 * model * 1e6 * workers / LINK
                driver = costs.round_s + costs.client_s * many + costs.model_MB_and_worker_s * model * workers
                yield {
                    "network": body,
                    "participants": f"{many:,}",
                    "accelerators": str(workers),
                    "MB there and back": number(2 * model * workers),
                    "training, s": number(train),
                    "link, s": number(wire),
                    "driver, s": number(driver),
                    "driver and link / round": f"{100 * (driver + wire) / (driver + wire + train):.1f} %",
                }


def kept(costs: Costs) -> Iterator[dict[str, str]]:
    """Table rows: what clients keep, by participants: heads (FedPer) and whole models (Ditto)."""
    for body in BODIES:
        net = network(body)
        for what, size in (("head", megabytes(net, "head.")), ("whole model", megabytes(net))):
            for many in PARTICIPANTS:
                yield {
                    "network": body,
                    "kept": what,
                    "participants": f"{many:,}",
                    "MB a client": number(size),
                    "driver's memory, GB": number(size * many / 1e3),
                    "a worker's of 8, GB": number(size * many / 8e3),
                    "of 64": number(size * many / 64e3),
                    "driver, s": number(costs.keeping(size) * many),
                    "link, s": number(size * 1e6 * many / LINK),
                }


def saturation(costs: Costs) -> Iterator[dict[str, str]]:
    """How many accelerators one driver keeps busy: the time to train a client over the time that the driver spends on
    it."""
    for body in BODIES:
        net = network(body)
        model, images = megabytes(net), SAMPLES * EPOCHS / rate(body)
        # the sums: driver + link seconds of a worker's sum against training, at 10^5 participants
        each = costs.model_MB_and_worker_s * model + 2 * model * 1e6 / LINK
        yield {
            "network": body,
            "images/s of one": f"{number(rate(body))} ({stack(body)[0]} stacked)",
            "Mflop an image": number(flops(net) / 1e6),
            "by clients, nothing kept": number(images / costs.client_s),
            "heads kept": number(images / (costs.keeping(megabytes(net, "head.")))),
            "models kept": number(images / (costs.keeping(model) + model * 1e6 / LINK)),
            "by sums, 10^3 participants": number((1e3 * images / each) ** 0.5),
            "10^5": number((1e5 * images / each) ** 0.5),
        }


def sections() -> dict[str, str]:
    found: dict[str, Any] = json.loads((ROOT / "bench" / "cluster.json").read_text(encoding="utf-8"))
    costs = Costs(**found["costs"])
    named = {
        "of a round": f"{1000 * costs.round_s:.1f} ms",
        "of a participant that keeps nothing": f"{1e6 * costs.client_s:.1f} µs",
        "of a participant that keeps a head": f"{1e6 * costs.keeping_client_s:.0f} µs",
        "of a megabyte of the model, for each worker": f"{1000 * costs.model_MB_and_worker_s:.2f} ms",
        "of a megabyte that clients keep": f"{1000 * costs.kept_MB_s:.2f} ms",
    }
    many = max(found["driver"], key=lambda row: int(row["clients"]))
    simulated = {
        "participants": f"{many['clients']:,}",
        "round, s": str(many["round s"]),
        "driver, s": str(many["driver s"]),
        "range": f"{many['driver low']} to {many['driver high']}",
        "participants a second, driver": f"{many['clients'] / many['driver s']:,.0f}",
        "MB out": str(many["MB out"]),
        "MB in": str(many["MB in"]),
        "n": str(many["n"]),
    }
    machine = ", ".join(str(value) for value in found["machine"].values())
    return {
        "costs": table([{"driver's seconds": name, "measured": value} for name, value in named.items()]),
        "machine": f"Measured on {machine} (machine, Python, torch, Ray) by `python bench/cluster.py`.",
        "simulated": table([simulated]),
        "rounds": table(list(rounds(costs))),
        "kept": table(list(kept(costs))),
        "saturation": table(list(saturation(costs))),
    }


def fill(text: str) -> str:
    for name, made in sections().items():
        before, begin, rest = text.partition(BEGIN.format(name))
        if begin:
            text = f"{before}{begin}\n{made}\n{END}{rest.partition(END)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
