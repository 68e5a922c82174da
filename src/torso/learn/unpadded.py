"""Gradients without padding, for a batch in which clients have different numbers of samples.

Padding changes how a sum is rounded. If a stack must give the same bits as single clients (on CPU, with a network that
`keeps_bits`), clients with the same number of samples in the batch are computed together, one such group after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.nets import Tensors

EqualWidth = tuple[slice, int]
"""Clients that are neighbours in a stack and have the same number of samples in a batch: their rows, and this
number."""


def equal_widths(batch: Batch) -> list[EqualWidth]:
    """The groups of clients with equally many samples, without clients that have none. Empty if no client is padded, or
    if the clients are not sorted by their number of samples."""
    if batch.real is None:
        return []
    widths = [int(width) for width in batch.real.sum(dim=1).tolist()]
    in_front = bool((batch.real[:, 1:] <= batch.real[:, :-1]).all())
    if not in_front or widths != sorted(widths, reverse=True):
        return []
    found, start = list[EqualWidth](), 0
    for width, some in groupby(filter(None, widths)):
        stop = start + len(list(some))
        found.append((slice(start, stop), width))
        start = stop
    return found


def narrowed(batch: Batch, rows: slice, width: int) -> Batch:
    """The part of a batch for clients that have `width` samples each."""
    keys = batch.keys[rows] if isinstance(batch.keys, Tensor) else batch.keys
    return Batch(batch.inputs[rows, :width], batch.labels[rows, :width], keys=keys, pad=batch.pad)


def joined_gradients(parts: Sequence[tuple[Tensors, Tensor]]) -> tuple[Tensors, Tensor]:
    """The gradients and losses of all groups, one below the other."""
    if len(parts) == 1:
        return parts[0]
    grads, losses = zip(*parts, strict=True)
    return {name: torch.cat([each[name] for each in grads]) for name in grads[0]}, torch.cat(losses)
