"""SHA-256 of what a run began with and of what it ended with: equal where data and models are equal, bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import torch
from torch import Tensor

from torso.data.fingerprint import Fingerprint
from torso.personal.state import State
from torso.personal.store import KINDS


def of_data(fingerprint: Fingerprint) -> str:
    """Of the samples and labels of every client and split, as far as the fingerprint looks at them."""
    return hashlib.sha256(json.dumps(fingerprint.as_json(), sort_keys=True).encode()).hexdigest()


def of_model(state: State) -> str:
    """The checksum of all tensors at the end: the server's model, and what clients hold."""
    digest = hashlib.sha256()
    for name, tensor in tensors_of(state):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)} ".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensors_of(state: State) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state by name, in the order of the names, the server's first."""
    yield from ((f"server {name}", tensor) for name, tensor in sorted(state.model.items()))
    for client in sorted(state.clients):
        held = state.clients[client]
        for kind in KINDS:
            yield from ((f"client {client} {kind} {name}", t) for name, t in sorted(getattr(held, kind).items()))
