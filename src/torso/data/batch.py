"""`Batch`: the samples of G clients for one step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.randomness import key, random_bits


@dataclass(frozen=True)
class Batch:
    """A batch of G clients with B samples each; clients with fewer samples are padded.

    `real` marks samples that are no padding, `active` the clients that have any samples; None: all of them.
    `lead`: the number of active clients, if all of them stand before the others; the rest need not be computed.
    `keys`: one per client for this step, for a network that draws random numbers (dropout): host numbers for a network
    that is not Torso's own, otherwise a tensor on the device.
    `taught`: outputs of teachers (models that do not learn) on the samples, if a loss compares with them."""

    inputs: Tensor  # [G, B, *], as the network takes them
    labels: Tensor  # [G, B]
    real: Tensor | None = None  # [G, B]
    active: Tensor | None = None  # [G]
    lead: int | None = None
    keys: tuple[int, ...] | Tensor | None = None  # [G]
    pad: int = 0  # id of padding, if inputs are token sequences: batches may have different lengths
    taught: dict[str, Tensor] | None = None  # [G, B, …]

    def first(self, clients: int) -> Batch:
        """The batch of the first clients, some of which may have no samples."""
        real = None if self.real is None else self.real[:clients]
        taught = None if self.taught is None else {name: output[:clients] for name, output in self.taught.items()}
        keys = self.keys[:clients] if isinstance(self.keys, Tensor) else self.keys
        return Batch(self.inputs[:clients], self.labels[:clients], real, keys=keys, taught=taught)

    def again(self, time: int) -> Batch:
        """The same batch for pass number `time` of the same step, with other random numbers."""
        if self.keys is None:
            return self
        if isinstance(self.keys, Tensor):
            return replace(self, keys=random_bits(~self.keys, time + 1)[:, time])
        return replace(self, keys=tuple(key(each, "again", time) for each in self.keys))

    def only(self, other: Batch) -> Batch:
        """This batch without the samples of clients that have no samples in `other`."""
        if other.active is None:
            return self
        real = torch.ones_like(self.labels, dtype=torch.float32) if self.real is None else self.real
        return Batch(self.inputs, self.labels, real * other.active.unsqueeze(-1), other.active, other.lead, self.keys)

    def filled_from(self, other: Batch) -> Batch:
        """This batch; clients without samples in it get their samples of `other`, which is as wide or wider."""
        if self.active is None:
            return self
        width = self.labels.shape[1]
        own_inputs, other_inputs = _as_long(self.inputs, other.inputs, self.pad)
        active = self.active.unsqueeze(-1)  # [G, 1]
        ones = torch.ones_like(other.labels, dtype=torch.float32)
        own_real = ones[:, :width] if self.real is None else self.real
        other_real = ones if other.real is None else other.real
        inputs, labels = other_inputs.clone(), other.labels.clone()
        active_wide = active.view(*active.shape, *[1] * (inputs.ndim - 2))
        inputs[:, :width] = torch.where(active_wide, own_inputs, other_inputs[:, :width])
        labels[:, :width] = torch.where(active, self.labels, other.labels[:, :width])
        padded_real = torch.nn.functional.pad(own_real, (0, ones.shape[1] - width))
        real = torch.where(active, padded_real, other_real)
        keys = self.keys
        other_keys = other.again(1).keys  # as for a client that has a single batch and meets it twice
        if isinstance(keys, Tensor) and isinstance(other_keys, Tensor):
            keys = torch.where(self.active, keys, other_keys)
        elif isinstance(keys, tuple) and not isinstance(other_keys, Tensor):
            choices = zip(self.active.tolist(), keys, other_keys or keys, strict=True)
            keys = tuple(own if is_active else fallback for is_active, own, fallback in choices)
        return Batch(inputs, labels, real, other.active, other.lead, keys)


def _as_long(one: Tensor, other: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Both inputs, padded to the longer one if they are token sequences [G, B, L]; other inputs are unchanged."""
    if one.ndim != 3 or one.shape[2] == other.shape[2]:
        return one, other
    longest = max(one.shape[2], other.shape[2])
    first, second = (torch.nn.functional.pad(x, (0, longest - x.shape[2]), value=pad) for x in (one, other))
    return first, second
