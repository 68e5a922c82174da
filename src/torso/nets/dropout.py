"""`Dropout`, the dropout layer of Torso's own networks, for G clients in one pass.

A client's mask is a function of four things: its key in this step, the number of the layer, the sample's position in
the batch, and the value's position in the sample. So it is the same in a stack of any size, with or without padding, on
any device. One hash makes four random numbers of 15 bits, so a probability is a multiple of 1/32,768.

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


def dropout_mask(keys: Tensor, place: int, samples: int, size: int, chance: float) -> Tensor:
    """A mask [G, B, size] of booleans: which values of G clients' samples stay, drawn from keys [G].

    Each value is dropped with probability `chance`. `place`: the number of the layer; `samples`: B."""
    layer_keys = random_bits(keys, place + 1)[:, place]
    words_per_sample = -(-size // _LANES)  # rounded up
    words = random_bits(layer_keys, samples * words_per_sample).view(len(keys), samples, -1, 1)
    shifts = _BITS * torch.arange(_LANES, device=keys.device)
    lanes = (words >> shifts) & ((1 << _BITS) - 1)
    return lanes.flatten(2)[..., :size] >= round(chance * (1 << _BITS))


class Dropout(nn.Module):
    """A layer that sets each value to 0 with probability `chance` in training, and divides it by 1 − chance otherwise.

    `place`: the number of this layer among the network's dropout layers. `whole`: channels of a map are dropped as a
    whole. `keys` [G] are set during `torso.nets.apply`. Without keys the layer draws as PyTorch's dropout does."""

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
            return F.dropout2d(x, self.chance) if self.whole else F.dropout(x, self.chance)
        if x.ndim == 3 and len(x) != len(self.keys):  # [1, G·B, d]: a body with adapters passes all samples as one
            return self.forward(x.reshape(len(self.keys), -1, x.shape[-1])).reshape(x.shape)
        if is_fast(x) and not self.whole:
            from torso.nets.kernels.maps import dropped

            return dropped(x, self.keys, self.place, round(self.chance * (1 << _BITS)), 1 / (1 - self.chance))
        clients = len(self.keys)
        if x.ndim == 4:  # values are numbered by pixel, then by channel, as maps are in memory
            channels = x.shape[1]
            height, width = (1, 1) if self.whole else (x.shape[2], x.shape[3])
            size = channels * height * width
            flat_mask = dropout_mask(self.keys, self.place, len(x) // clients, size, self.chance)
            mask = flat_mask.reshape(len(x), height, width, channels).permute(0, 3, 1, 2)
        else:
            mask = dropout_mask(self.keys, self.place, x.shape[1], x.shape[2], self.chance)
        return x * mask * (1 / (1 - self.chance))


def active_dropouts(net: nn.Module) -> list[Dropout]:
    """The dropout layers that draw in the network's present modes."""
    return [layer for layer in net.modules() if isinstance(layer, Dropout) and layer.training and layer.chance]


@contextmanager
def dropping_by_keys(layers: list[Dropout], keys: Tensor) -> Iterator[None]:
    """A context in which these layers draw from keys [G]."""
    for layer in layers:
        layer.keys = keys
    try:
        yield
    finally:
        for layer in layers:
            layer.keys = None
