"""What G clients meet in one step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.randomness import key, random_bits


@dataclass(frozen=True)
class Batch:
    """`real` [G, B] marks samples that are no padding, `active` [G] the clients that have any; None: all of them.

    `lead`: where those with samples stand before all others, how many they are; nobody needs to compute the rest.
    `keys`: one for each client and step, for a network that draws random numbers (dropout): numbers of the host for one
    that is not Torso's own, a tensor [G] on the device for one that is.
    `taught`: what models that do not learn say of the samples, where a loss compares with them."""

    inputs: Tensor  # [G, B, *], as the network takes them
    labels: Tensor  # [G, B]
    real: Tensor | None = None
    active: Tensor | None = None
    lead: int | None = None
    keys: tuple[int, ...] | Tensor | None = None
    pad: int = 0  # id of padding, where inputs are token sequences: batches may have different lengths
    taught: dict[str, Tensor] | None = None  # [G, B, …]

    def first(self, clients: int) -> Batch:
        """The batch of the first clients, some of which may have no samples."""
        real = None if self.real is None else self.real[:clients]
        taught = None if self.taught is None else {what: said[:clients] for what, said in self.taught.items()}
        keys = self.keys[:clients] if isinstance(self.keys, Tensor) else self.keys
        return Batch(self.inputs[:clients], self.labels[:clients], real, keys=keys, taught=taught)

    def again(self, time: int) -> Batch:
        """The same samples met once more in the same step, with other random numbers."""
        if self.keys is None:
            return self
        if isinstance(self.keys, Tensor):
            return replace(self, keys=random_bits(~self.keys, time + 1)[:, time])
        return replace(self, keys=tuple(key(each, "again", time) for each in self.keys))

    def only(self, other: Batch) -> Batch:
        """This batch without the samples of clients that have none in the other."""
        if other.active is None:
            return self
        real = torch.ones_like(self.labels, dtype=torch.float32) if self.real is None else self.real
        return Batch(self.inputs, self.labels, real * other.active.unsqueeze(-1), other.active, other.lead, self.keys)

    def filled_from(self, other: Batch) -> Batch:
        """This batch, and the other's samples for the clients that have none in it; the other is as wide or wider."""
        if self.active is None:
            return self
        width = self.labels.shape[1]
        ours, theirs = _as_long(self.inputs, other.inputs, self.pad)
        mine = self.active.unsqueeze(-1)
        every = torch.ones_like(other.labels, dtype=torch.float32)
        real = every[:, :width] if self.real is None else self.real
        fallback = every if other.real is None else other.real
        inputs, labels = theirs.clone(), other.labels.clone()
        wide = mine.view(*mine.shape, *[1] * (inputs.ndim - 2))
        inputs[:, :width] = torch.where(wide, ours, theirs[:, :width])
        labels[:, :width] = torch.where(mine, self.labels, other.labels[:, :width])
        padded = torch.nn.functional.pad(real, (0, every.shape[1] - width))
        keys, twice = self.keys, other.again(1).keys  # as those draw that have one batch alone and meet it twice
        if isinstance(keys, Tensor) and isinstance(twice, Tensor):
            keys = torch.where(self.active, keys, twice)
        elif isinstance(keys, tuple) and not isinstance(twice, Tensor):
            had = zip(self.active.tolist(), keys, twice or keys, strict=True)
            keys = tuple(here if has else there for has, here, there in had)
        return Batch(inputs, labels, torch.where(mine, padded, fallback), other.active, other.lead, keys)


def _as_long(one: Tensor, other: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Two batches [G, B, L] whose sequences have the same length; anything else as it is."""
    if one.ndim != 3 or one.shape[2] == other.shape[2]:
        return one, other
    longest = max(one.shape[2], other.shape[2])
    first, second = (torch.nn.functional.pad(x, (0, longest - x.shape[2]), value=pad) for x in (one, other))
    return first, second
