"""Weighted sums of what clients send.

A sum is taken in the order of the participants, client by client, whoever computed the parts: neither the number of
workers or threads nor the size of a stack changes a bit. On an accelerator a stack is summed in one product instead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torso.nets import Tensors

_SMALL = 1 << 16  # numbers of a tensor that are summed for all clients of a stack in one call


def add_weighted(total: Tensors, stacked: Tensors, weights: Tensor) -> None:
    """Add Σ_g w_g t_g over the client dimension of [G, *] tensors to the total, in place.

    Counters (integers) have no mean: the largest stands."""
    for name, tensor in stacked.items():
        if not tensor.is_floating_point():
            _add_one(total, name, tensor.amax(dim=0))
        elif tensor.device.type == "cpu":
            _add_rows(total, name, tensor, weights)
        elif len(tensor) == 1:
            _add_one(total, name, tensor[0] * weights[0])
        else:
            _add_one(total, name, (weights @ tensor.reshape(len(tensor), -1)).view(tensor.shape[1:]))


def add_stacked(total: Tensors, stacked: Tensors) -> None:
    """Add Σ_g t_g over the client dimension of [G, *] tensors to the total, in place."""
    for name, tensor in stacked.items():
        if tensor.device.type == "cpu":
            _add_rows(total, name, tensor)
        else:
            _add_one(total, name, tensor[0] if len(tensor) == 1 else tensor.sum(dim=0))


def add(total: Tensors, part: Tensors) -> None:
    """Add one client's tensors, or a partial sum, to the total, in place; an empty total becomes a copy."""
    for name, tensor in part.items():
        _add_one(total, name, tensor)


def _add_one(total: Tensors, name: str, tensor: Tensor) -> None:
    if name not in total:
        total[name] = tensor.clone()
    elif tensor.is_floating_point():
        total[name] += tensor
    else:
        total[name] = torch.maximum(total[name], tensor)


def _add_rows(total: Tensors, name: str, stacked: Tensor, weights: Tensor | None = None) -> None:
    """One client after the other. NumPy does that for many small rows at once: `accumulate` by definition, and `reduce`
    over the first axis as long as a row has more than one number (tests/server/test_sums.py)."""
    clients, size = len(stacked), stacked[0].numel()
    if clients < 3 or size > _SMALL:
        for g, one in enumerate(stacked):
            _add_one(total, name, one if weights is None else one * weights[g])
        return
    flat = stacked.reshape(clients, size)
    rows = flat if weights is None else flat * weights.unsqueeze(1)
    if name in total:
        rows = torch.cat([total[name].reshape(1, size), rows])
    by_row = np.add.reduce if size > 1 else lambda all_of_it, axis: np.add.accumulate(all_of_it, axis=axis)[-1]
    summed = torch.from_numpy(by_row(rows.detach().numpy(), axis=0))
    total[name] = summed.view(stacked.shape[1:]).clone()  # torch aligns its memory, NumPy does not
