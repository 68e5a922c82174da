"""What a checkpoint writes: only clients that have changed since the last one, against all of them.

    python bench/checkpoints.py [--body resnet18] [--clients 100] [--fraction 0.1] [--rounds 5] [--out FILE]

Every client keeps a whole network. Each round changes the states of some; a checkpoint follows. `all` writes all states
each time, as the first version did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torso.nets import LinearHead, build
from torso.personal.state import State
from torso.personal.store import ClientState, Store
from torso.results.checkpoint import Checkpoints
from torso.server.state import ServerState


def measure(body: str, clients: int, fraction: float, rounds: int, everything: bool) -> dict[str, Any]:
    net = build(body, 10, (3, 32, 32), LinearHead())
    model = {name: tensor.detach() for name, tensor in net.state_dict().items()}

    def trained(round: int) -> ClientState:
        return ClientState(kept={n: t + round if t.is_floating_point() else t.clone() for n, t in model.items()})

    store, each = Store({k: trained(0) for k in range(clients)}), max(round(clients * fraction), 1)
    seconds, written = [], []
    with tempfile.TemporaryDirectory() as folder:
        place = Checkpoints(Path(folder) / "checkpoints", "bench")
        place.save(State(ServerState(model, round=0), store))
        for number in range(1, rounds + 1):
            chosen = [(number * each + place_) % clients for place_ in range(each)]
            store = store.updated({k: trained(number) for k in chosen})
            state = State(ServerState(model, round=number), store)
            if everything:
                place = Checkpoints(Path(folder) / "checkpoints", "bench")
            before, began = place.written, time.perf_counter()
            place.save(state)
            seconds.append(time.perf_counter() - began)
            written.append(place.written - before)
    return {"MB": round(median(written) / 1e6, 1), "s": round(median(seconds), 2), "n": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body", default="resnet18")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    asked = options.body, options.clients, options.fraction, options.rounds
    found: dict[str, Any] = {
        "body": options.body,
        "clients": options.clients,
        "fraction": options.fraction,
        "changed": measure(*asked, everything=False),
        "all": measure(*asked, everything=True),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    for unit in ("MB", "s"):
        found[f"{unit} all / changed"] = round(found["all"][unit] / max(found["changed"][unit], 1e-9), 1)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
