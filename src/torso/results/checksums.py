"""SHA-256 checksums of a run's data and of its final model. Runs with equal bits have equal checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import torch
from torch import Tensor

from torso.data.fingerprint import Fingerprint
from torso.personal.state import State
from torso.personal.store import KINDS


def data_checksum(fingerprint: Fingerprint) -> str:
    """The checksum of the data: samples and labels of every client and split, as the fingerprint summarises them."""
    return hashlib.sha256(json.dumps(fingerprint.as_json(), sort_keys=True).encode()).hexdigest()


def model_checksum(state: State) -> str:
    """The checksum of all tensors of a state: the server's model, and the states of clients."""
    digest = hashlib.sha256()
    for name, tensor in tensors_of(state):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)} ".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensors_of(state: State) -> Iterator[tuple[str, Tensor]]:
    """Pairs of name and tensor, the server's model first, each group sorted by name."""
    yield from ((f"server {name}", tensor) for name, tensor in sorted(state.model.items()))
    for client in sorted(state.clients):
        held = state.clients[client]
        for kind in KINDS:
            yield from ((f"client {client} {kind} {name}", t) for name, t in sorted(getattr(held, kind).items()))
