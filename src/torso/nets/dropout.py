"""Dropout of Torso's own networks, for G clients in one pass.

The mask of a client is a function of its key in this step, of the layer's place, of the sample's place in the batch and
of the number's place in the sample. So it is the same in a stack of any size, with or without padding, on any device.
One hash makes four numbers of 15 bits, so a chance is a multiple of 1/32,768.

G clients, B samples, * the shape of a sample: maps [G·B, C, H, W] or flat [G, B, d]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.fast import is_fast
from torso.randomness import random_bits

_LANES, _BITS = 4, 15


def kept(keys: Tensor, place: int, samples: int, size: int, chance: float) -> Tensor:
    """Truths [G, B, size]: which numbers of G clients' samples stay, by keys [G]; each is left out with the chance."""
    mine = random_bits(keys, place + 1)[:, place]
    words = random_bits(mine, samples * -(-size // _LANES)).view(len(keys), samples, -1, 1)
    shifts = _BITS * torch.arange(_LANES, device=keys.device)
    lanes = (words >> shifts) & ((1 << _BITS) - 1)
    return lanes.flatten(2)[..., :size] >= round(chance * (1 << _BITS))


class Dropout(nn.Module):
    """In training each number is 0 with the chance, and 1 / (1 − chance) of itself otherwise.

    `place`: which of the network's dropout layers this is. `whole`: a channel of a map is left out as a whole. `keys`
    [G] are there during `torso.nets.apply`; a network that somebody calls himself draws as PyTorch's does."""

    def __init__(self, chance: float, place: int, whole: bool = False) -> None:
        super().__init__()
        self.chance, self.place, self.whole = chance, place, whole
        self.keys: Tensor | None = None

    def extra_repr(self) -> str:
        return f"{self.chance}, place {self.place}{', of whole channels' if self.whole else ''}"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if not self.training or not self.chance:
            return x
        if self.keys is None:
            return (F.dropout2d if self.whole else F.dropout)(x, self.chance)
        if x.ndim == 3 and len(x) != len(self.keys):  # under adapters, which leave all samples in one line
            return self.forward(x.reshape(len(self.keys), -1, x.shape[-1])).reshape(x.shape)
        if is_fast(x) and not self.whole:
            from torso.nets.kernels.maps import dropped

            return dropped(x, self.keys, self.place, round(self.chance * (1 << _BITS)), 1 / (1 - self.chance))
        clients = len(self.keys)
        if x.ndim == 4:  # by pixel, then channel: as maps lie in memory
            channels = x.shape[1]
            height, width = (1, 1) if self.whole else (x.shape[2], x.shape[3])
            size = channels * height * width
            flat = kept(self.keys, self.place, len(x) // clients, size, self.chance)
            stay = flat.reshape(len(x), height, width, channels).permute(0, 3, 1, 2)
        else:
            stay = kept(self.keys, self.place, x.shape[1], x.shape[2], self.chance)
        return x * stay * (1 / (1 - self.chance))


def drops(net: nn.Module) -> list[Dropout]:
    """The layers that draw in the network's present modes."""
    return [layer for layer in net.modules() if isinstance(layer, Dropout) and layer.training and layer.chance]


@contextmanager
def dropping(layers: list[Dropout], keys: Tensor) -> Iterator[None]:
    """Inside, these layers draw from keys [G]."""
    for layer in layers:
        layer.keys = keys
    try:
        yield
    finally:
        for layer in layers:
            layer.keys = None
