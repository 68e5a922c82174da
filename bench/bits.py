"""Checksums of nineteen runs on CPU: two versions of Torso that print the same lines compute the same bits.

The networks are one whose clients share stacks (mlp) and one whose clients do not (conv3). The checksums are of the
generic model, of three clients' models before and after personalisation, of the losses and of the accuracies.

    PYTHONPATH=OLD/src python bench/bits.py > old; PYTHONPATH=NEW/src python bench/bits.py > new; diff old new
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch

import torso
from torso.runs.events import Listener

METHODS = ("fedavg", "fedbabu", "fedper", "fedrep", "scaffold", "ditto", "fedfomo", "fedrod-hyper", "fedncm", "fedexp")


class Losses(Listener):
    """A listener that collects the losses of the rounds."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    def round(self, round: object, seconds: float, accuracy: object) -> None:
        self.heard.append(round.loss)  # type: ignore[attr-defined]


def checksum(method: str, body: str) -> str:
    config = torso.Config(
        method=method,
        data={
            "source": "digits",
            "clients": 10,
            "partition": "dirichlet-class",
            "alpha": 0.5,
            "server_fraction": 0.1,
            "meta_per_class": 2,
        },
        model={"body": body},
        train={"rounds": 4, "fraction": 0.5, "local_epochs": 2, "batch_size": 20, "lr": 0.05, "momentum": 0.9},
        personalize={"epochs": 1},
        measure={"names": ("initial", "personalized", "generic", "generic_as_personal", "without_head")},
        run={"device": "cpu", "workers": 2},
    )
    losses = Losses()
    result = torso.run(config, listener=losses)
    digest = hashlib.sha256(json.dumps(losses.heard).encode())
    digest.update(json.dumps({n: found.as_json() for n, found in result.accuracy.items()}, sort_keys=True).encode())
    nets = [result.network(), *(result.network(k, personal=own) for k in (0, 4, 9) for own in (False, True))]
    for net in nets:
        for name, tensor in sorted(net.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return f"{result.status} {digest.hexdigest()[:32]}"


def main() -> None:
    torch.set_num_threads(1)
    for method in sys.argv[1:] or METHODS:
        for body in ("mlp",) if method.startswith("fedncm") else ("mlp", "conv3"):  # features that a batch changes
            print(f"{method:14} {body:5} {checksum(method, body)}", flush=True)


if __name__ == "__main__":
    main()
