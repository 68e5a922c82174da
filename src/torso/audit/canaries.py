"""Canaries: clients whose uploads the auditor chooses. Each canary is present in the training or absent.

A present canary always sends the same random direction, long enough to be clipped. An absent canary sends a change of
zero. Since the sum of a round is divided by a fixed number, it is then the same as without that client.
Shapes: c canaries, * a parameter's shape.
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
from torso.learn.attacks import Attack, HonestUpload
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.randomness import key, numpy_generator, random_bits

LONG = 100.0  # length of a canary's upload, times the clip; large, so that running statistics in it hardly matter
_BITS = 62  # bits of a random number that are used, each as one sign


@dataclass(frozen=True, eq=False)
class Canaries(Attack):
    """The canaries of one run, as an attack that replaces their uploads."""

    clients: tuple[int, ...]  # [c]
    present: tuple[bool, ...]  # [c]
    directions: Tensors  # [c, *], of norm 1 for each canary
    length: float  # norm of a present canary's upload

    @classmethod
    def drawn(cls, seed: int, training: NDArray[np.int64], count: int, like: Tensors, clip: float) -> Canaries:
        """Draw `count` canaries from the training clients; each is present with probability ½.

        `like`: the parameters that are uploaded."""
        rng = numpy_generator(seed, "canaries")
        clients = tuple(np.sort(rng.choice(training, count, replace=False)).tolist())
        present = tuple((rng.integers(2, size=count) == 1).tolist())
        return cls(clients, present, directions(seed, clients, like), LONG * clip)

    def upload(self, honest: HonestUpload) -> Tensors:
        places = [self.clients.index(client) for client in honest.clients]
        lengths = [self.length * self.present[place] for place in places]
        return {
            name: self.directions[name][places] * per_client(on_device(change.device, lengths), change)
            for name, change in honest.change.items()
        }

    def seen_in(self, before: Tensors, after: Tensors) -> Tensor:
        """The change of the model projected on each canary's direction [c]."""
        moved = [(after[name] - before[name]).flatten() @ d.flatten(1).T for name, d in self.directions.items()]
        return torch.stack(moved).sum(dim=0)


def directions(seed: int, clients: Sequence[int], like: Mapping[str, Tensor]) -> Tensors:
    """Random directions [c, *]: for each client, entries ±1 over all tensors together, scaled to norm 1."""
    size = math.sqrt(sum(tensor.numel() for tensor in like.values()))
    found: Tensors = {}
    for name, tensor in sorted(like.items()):
        keys = on_device(tensor.device, [key(seed, "canary", client, name) for client in clients])
        words = random_bits(keys, -(-tensor.numel() // _BITS))
        bits = (words[..., None] >> torch.arange(_BITS, device=words.device)) & 1
        signs = 2 * bits.flatten(1)[:, : tensor.numel()] - 1
        found[name] = (signs.to(tensor.dtype) / size).view(len(clients), *tensor.shape)
    return found
