"""All measurements on an accelerator, in sections that print their results and write JSON under --out.

    python bench/accelerator.py --data FOLDER --out FOLDER [--only engine,runs,precision,methods,family] [--seconds 400]

`engine`: images per second of stacked clients, one by one, one large model. `runs`: whole `torso run` processes,
start-up and compilation included. `precision`: accuracy of bf16, tf32 and fp32 over three seeds. `methods`: every
preset once at the setting of docs/methods.md. `family`: a body trained on CIFAR-100, then FedNCM's family on CIFAR-10.
FOLDER holds cifar10_jpeg.npz or an official CIFAR-10 archive, and CIFAR-100's for the mobilenet run and the family.
`--quick` makes everything tiny, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torso
from torso.data import build
from torso.engine.bench import measure_engine
from torso.methods import methods
from torso.runs.devices import device_named

FROM_A_BODY = {
    "ft",
    "lp",
    "lp-ft",
    "lp5-ft",
    "mlp-head",
    "fedncm",
    "fedncm-ft",
    "random",
    "fedit",
    "ffa-lora",
    "fedsa-lora",
}  # docs/methods.md, second table
Keep = Callable[[str, Any], None]


def engine(options: argparse.Namespace, keep: Keep) -> None:
    for precision in ("bf16", "tf32"):
        for body in ("conv4", "mobilenet", "vgg11", "resnet18"):
            clients = [10, 100] if body in ("conv4", "mobilenet") else [10]
            found = measure_engine([body], clients, 50, precision, torch.device("cuda"))
            keep(f"engine-{body}-{precision}", found)


def whole_run(name: str, sets: list[str], keep: Keep) -> None:
    began = time.perf_counter()
    command = [sys.executable, "-m", "torso", "run", "--quiet", "--json", *(w for s in sets for w in ("--set", s))]
    done = subprocess.run(
        [*command, "--out", f"/tmp/torso-{name}-{time.time_ns()}"], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    found = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-500:]}
    accuracy = {k: (v["mean"], v["std"]) for k, v in found.get("accuracy", {}).items()}
    keep(
        f"run-{name}",
        {"process_s": round(seconds, 1), "accuracy": accuracy, **{k: found.get(k) for k in ("seconds", "error")}},
    )


def runs(options: argparse.Namespace, keep: Keep) -> None:
    base = [
        "method.name=fedbabu",
        "data.clients=100",
        "train.rounds=320",
        "train.local_epochs=1",
        "run.checkpoint_every=0",
    ]
    base += ["run.precision=bf16", "measure.names=initial,personalized"]
    ten = [*base, "data.source=cifar10", f"data.root={options.data}", "data.shards=10", "model.body=conv4"]
    whole_run("cifar10-conv4-f0.1", [*ten, "train.fraction=0.1"], keep)
    whole_run("cifar10-conv4-f1.0", [*ten, "train.fraction=1.0"], keep)
    if list(options.data.glob("cifar*100*")):
        hundred = ["data.source=cifar100", f"data.root={options.data}", "data.shards=100", "model.body=mobilenet"]
        whole_run("cifar100-mobilenet-f1.0", [*base, *hundred, "train.fraction=1.0"], keep)


def config(
    options: argparse.Namespace, method: str, seed: int = 0, precision: str = "auto", **train: Any
) -> torso.Config:
    usual = {"rounds": 40, "local_epochs": 4, "fraction": 0.1}
    if options.quick:
        train = {"rounds": 1, "local_epochs": 1, "fraction": 0.01}
    data = {"source": "cifar10", "root": str(options.data), "clients": 100, "shards": 5}
    return torso.Config(
        method=method,
        data={**data, "server_fraction": 1.0 if method.startswith("centralized") else 0.05},
        model={"body": "conv4"},
        train={**usual, **train},
        run={"seed": seed, "precision": precision},
    )


def summary(result: torso.Result) -> dict[str, Any]:
    accuracy = {name: (round(a.mean, 2), round(a.std, 2)) for name, a in result.accuracy.items()}
    kept = {key: value for key, value in result.as_json().items() if key not in ("accuracy", "versions")}
    return {**kept, "accuracy": accuracy}


def precision(options: argparse.Namespace, keep: Keep) -> None:
    for seed in range(3):
        for kind in ("fp32", "tf32", "bf16"):
            for method in ("fedavg", "fedbabu"):
                found = torso.run(config(options, method, seed, kind, rounds=32, local_epochs=10))
                keep(f"precision-{method}-{kind}-{seed}", summary(found))


def every_method(options: argparse.Namespace, keep: Keep) -> None:
    federation = build(config(options, "fedavg").data, 0, device_named("auto"))
    for name in sorted(set(methods) - FROM_A_BODY):
        if time.perf_counter() - options.began > options.seconds:
            print(f"time is up before {name}", flush=True)
            return
        shared = None if name.startswith("centralized") else federation
        keep(f"method-{name}", summary(torso.run(config(options, name), federation=shared)))


def family(options: argparse.Namespace, keep: Keep) -> None:
    """The section on FedNCM's family (spec 7): accuracy and cost of each way to use a trained body."""
    model = {"body": "conv4", "norm": "running"}
    body = options.out / "body"
    hundred = {"source": "cifar100", "root": str(options.data), "clients": 100, "partition": "iid"}
    trained = torso.run(
        torso.Config(
            method="centralized",
            data={**hundred, "server_fraction": 0.02 if options.quick else 1.0},
            model=model,
            train={"rounds": 1 if options.quick else 30, "batch_size": 250, "weight_decay": 5e-4, "schedule": "cosine"},
            measure={"names": ["generic"]},
            run={"checkpoint_every": 0},
        ),
        out=body,
    )
    keep("family-body", summary(trained))
    ten = {**hundred, "source": "cifar10", "partition": "dirichlet-client", "alpha": 0.1}
    federation = None
    rates = {"fedncm": (0.1,), "lp": (0.1, 0.5), "ft": (0.02, 0.1), "fedncm-ft": (0.02, 0.1), "lp-ft": (0.02, 0.1)}
    cases = [(name, rate, True) for name in rates for rate in rates[name]]
    cases += [("random", 0.02, False), ("random", 0.1, False), ("fedncm", 0.1, False)]
    for name, rate, knows in cases:
        asked = torso.Config(
            method=name,
            data={**ten, "augment": "flip"},
            model={**model, **({"weights": str(body)} if knows else {})},
            train={
                "rounds": 11 if options.quick else 60,
                "local_epochs": 1,
                "fraction": 0.01 if options.quick else 0.3,
                "batch_size": 64,
                "lr": rate,
                "momentum": 0.0,
                "schedule": "const",
            },
            measure={"names": ["generic"]},
        )
        federation = federation or build(asked.data, 0, device_named("auto"))
        keep(f"family-{name}-{rate}{'' if knows else '-untrained'}", summary(torso.run(asked, federation=federation)))


SECTIONS: dict[str, Callable[[argparse.Namespace, Keep], None]] = {
    "engine": engine,
    "runs": runs,
    "precision": precision,
    "methods": every_method,
    "family": family,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further method after so many seconds")
    parser.add_argument("--quick", action="store_true", help="one round of everything, to try the script")
    options = parser.parse_args()
    options.began = time.perf_counter()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"device": device, "torch": torch.__version__}

    def keep(name: str, value: Any) -> None:
        found[name] = value
        print(name, json.dumps(value), f"[{time.perf_counter() - options.began:.0f} s]", flush=True)
        (options.out / f"{options.only}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")

    for name in options.only.split(","):
        try:
            SECTIONS[name](options, keep)
        except Exception as error:  # one section's end is not the others'
            print(name, "ended:", repr(error)[:500], flush=True)


if __name__ == "__main__":
    main()
