"""A stack's batch in which clients have different numbers of samples, without padding.

Padding changes how a sum is rounded. Where the bits of a stack are to be those of single clients (on CPU, with a
network that `keeps_bits`), clients with equally many samples are computed together, and the others after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.nets import Tensors

Run = tuple[slice, int]
"""Neighbours in a stack, and how many samples each of them has."""


def runs_of(batch: Batch) -> list[Run]:
    """Who has samples, by how many; nothing where no client is padded, or where they do not stand by their number."""
    if batch.real is None:
        return []
    widths = [int(width) for width in batch.real.sum(dim=1).tolist()]
    in_front = bool((batch.real[:, 1:] <= batch.real[:, :-1]).all())
    if not in_front or widths != sorted(widths, reverse=True):
        return []
    found, start = list[Run](), 0
    for width, some in groupby(filter(None, widths)):
        stop = start + len(list(some))
        found.append((slice(start, stop), width))
        start = stop
    return found


def of_run(batch: Batch, rows: slice, width: int) -> Batch:
    """The samples of neighbours that have so many."""
    keys = batch.keys[rows] if isinstance(batch.keys, Tensor) else batch.keys
    return Batch(batch.inputs[rows, :width], batch.labels[rows, :width], keys=keys, pad=batch.pad)


def joined(parts: Sequence[tuple[Tensors, Tensor]]) -> tuple[Tensors, Tensor]:
    """Gradients and losses of all runs."""
    if len(parts) == 1:
        return parts[0]
    grads, losses = zip(*parts, strict=True)
    return {name: torch.cat([each[name] for each in grads]) for name in grads[0]}, torch.cat(losses)
