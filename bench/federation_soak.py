"""A soak test: 200 rounds over a real federation that lacks one reply of ten, beside simulations without faults.

    python bench/federation_soak.py [--rounds 200] [--clients 5] [--drop 0.1]

Prints accuracies and times, and writes bench/federation_soak.json. A client that drops out has trained and does not
reply, and the server is notified. The client's state goes back to the last round that counted."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import torso
from torso import Config
from torso.randomness import numpy_generator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


def client(place: str, name: str, data: str, drop: float) -> None:
    """A client that fails to reply in a tenth of its rounds, always the same ones."""
    from torso.federation.client_service import ClientService
    from torso.federation.flower.client import FlowerClientLink
    from torso.federation.folder import ClientFolder
    from torso.federation.protocol import Request, failed
    from torso.federation.site_data import read_site

    torch.set_num_threads(1)
    there = ClientFolder.open(place)
    home = ClientService(
        name, read_site(data, Config().data, name), there.path / name, torch.device("cpu"), lambda _: None
    )

    def answer(message: bytes) -> bytes:
        header, reply = Request.decode(message).header, home.answer(message)
        lost = header.kind == "told" and numpy_generator(0, "drop", header.round, header.client).random() < drop
        return failed("it dropped out").encode() if lost else reply

    with FlowerClientLink(there, name) as link:
        link.serve(answer)


def federation(config: Config, folder: Path, drop: float, rounds: int) -> tuple[torso.Result, float, list[int]]:
    from tests.federation.flower import machine
    from tests.federation.wire import free_port, until

    from torso.federation.flower.control import admitted
    from torso.federation.flower.serve import serving
    from torso.federation.flower.server import FlowerServerLink
    from torso.federation.folder import init
    from torso.federation.run import run_federation
    from torso.federation.split import split

    files = split(config, folder / "split")
    place = init(folder / "federation", "127.0.0.1", free_port(), config=folder / "split" / "config.toml")
    children = []
    with serving(place, lambda _: None):
        try:
            for file in files:
                there = machine(folder, place, file.stem)
                words = [sys.executable, __file__, "--client", str(there.path), file.stem, str(file), str(drop)]
                children.append(subprocess.Popen(words, env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}))
            until(lambda: sum(one.state == "online" for one in admitted(place)) == len(files), "clients")
            began = time.perf_counter()
            deployed = Config.load(folder / "split" / "config.toml").but(f"run.flower.clients={len(files)}")
            result = run_federation(deployed, FlowerServerLink(place), folder / "run", say=print)
            seconds = time.perf_counter() - began
        finally:
            for child in children:
                child.terminate()
    lines = [json.loads(line) for line in (folder / "run" / "history.jsonl").read_text().splitlines()]
    return result, seconds, [len(line.get("missing", ())) for line in lines]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--clients", type=int, default=5)
    options.add_argument("--drop", type=float, default=0.1)
    options.add_argument("--client", nargs=4)
    given = options.parse_args()
    if given.client:
        return client(*given.client[:3], float(given.client[3]))
    sets = [
        *("method.name=fedrep", f"data.clients={given.clients}", "data.partition=dirichlet-class", "data.alpha=0.5"),
        *(f"train.rounds={given.rounds}", "train.fraction=1.0", "train.local_epochs=1", "train.lr=0.05"),
        *('measure.names=["initial","personalized"]', "run.checkpoint_every=1"),
    ]
    config = Config.load(None, sets)
    whole = [torso.run(config.but(f"run.seed={seed}", "run.checkpoint_every=0")) for seed in range(5)]
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        result, seconds, missing = federation(config, folder, given.drop, given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = {
        "what": f"FedRep, digits, {given.clients} clients, all asked in each of {given.rounds} rounds, 1 local epoch",
        "dropped": {"share": given.drop, "replies_missing": sum(missing), "of": given.rounds * given.clients},
        "n": 1,
        "status": result.status,
        "seconds": round(seconds, 1),
        "seconds_a_round": round(seconds / given.rounds, 3),
        "accuracy": {name: round(a.mean, 2) for name, a in result.accuracy.items()},
        "simulated_without_faults_seeds_0_to_4": {
            name: [round(one.accuracy[name].mean, 2) for one in whole] for name in result.accuracy
        },
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "versions": {"torch": torch.__version__, "torso": torso.__version__, "python": platform.python_version()},
    }
    print(json.dumps(found, indent=1))
    (HERE / "federation_soak.json").write_text(json.dumps(found, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
