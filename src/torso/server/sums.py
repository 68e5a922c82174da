"""Weighted sums of what clients send, added in a fixed order, so that the number of workers changes no bit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torso.nets import Tensors


def weighted_sum(stacked: Tensors, weights: Tensor) -> Tensors:
    """Σ_g w_g t_g over the client dimension of [G, *] tensors. Counters (integers) have no mean: the largest stands."""
    return {n: _sum_one(t, weights) for n, t in stacked.items()}


def add(parts: Iterable[Tensors]) -> Tensors:
    """Partial sums of disjoint groups of clients, added from first to last."""
    total: Tensors = {}
    for part in parts:
        if not total:
            total = {n: t.clone() for n, t in part.items()}
            continue
        for name, tensor in part.items():
            if tensor.is_floating_point():
                total[name] += tensor
            else:
                total[name] = torch.maximum(total[name], tensor)
    return total


def _sum_one(tensor: Tensor, weights: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.amax(dim=0)
    if len(tensor) == 1:
        return tensor[0] * weights[0]
    total: Tensor = torch.tensordot(weights, tensor, dims=1)
    return total
