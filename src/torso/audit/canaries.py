"""Canaries: clients whose updates the auditor has chosen, each of which is in the training or not.

A canary that is in always sends the same random direction, long enough to be clipped. One that is out sends no change:
a sum over the participants that is divided by a fixed number is then what it would be without that client.
c canaries, * a parameter's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.attacks import Attack, Upload
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.randomness import key, numpy_generator, random_bits

LONG = 100.0  # times the clip: what else a canary sends, such as running statistics, hardly counts beside it
_BITS = 62  # of a random number, as many signs


@dataclass(frozen=True, eq=False)
class Canaries(Attack):
    """Who they are in one run, whether they are in, and the direction of each [c, *], of length 1."""

    clients: tuple[int, ...]
    present: tuple[bool, ...]
    directions: Tensors
    length: float

    @classmethod
    def drawn(cls, seed: int, training: NDArray[np.int64], count: int, like: Tensors, clip: float) -> Canaries:
        """`like`: the parameters that travel. Each canary is in with probability ½."""
        rng = numpy_generator(seed, "canaries")
        clients = tuple(np.sort(rng.choice(training, count, replace=False)).tolist())
        present = tuple((rng.integers(2, size=count) == 1).tolist())
        return cls(clients, present, directions(seed, clients, like), LONG * clip)

    def upload(self, honest: Upload) -> Tensors:
        places = [self.clients.index(client) for client in honest.clients]
        lengths = [self.length * self.present[place] for place in places]
        return {
            name: self.directions[name][places] * per_client(on_device(change.device, lengths), change)
            for name, change in honest.change.items()
        }

    def seen_in(self, before: Tensors, after: Tensors) -> Tensor:
        """How far the model has moved along each canary's direction [c]."""
        moved = [(after[name] - before[name]).flatten() @ d.flatten(1).T for name, d in self.directions.items()]
        return torch.stack(moved).sum(dim=0)


def directions(seed: int, clients: Sequence[int], like: Mapping[str, Tensor]) -> Tensors:
    """Random signs, one vector for each client over all these tensors together, of length 1: [c, *]."""
    size = math.sqrt(sum(tensor.numel() for tensor in like.values()))
    found: Tensors = {}
    for name, tensor in sorted(like.items()):
        keys = on_device(tensor.device, [key(seed, "canary", client, name) for client in clients])
        words = random_bits(keys, -(-tensor.numel() // _BITS))
        bits = (words[..., None] >> torch.arange(_BITS, device=words.device)) & 1
        signs = 2 * bits.flatten(1)[:, : tensor.numel()] - 1
        found[name] = (signs.to(tensor.dtype) / size).view(len(clients), *tensor.shape)
    return found
