"""Weighted sums of what clients send, added in a fixed order, so that the number of workers changes no bit."""

from __future__ import annotations

import torch
from torch import Tensor

from torso.nets import Tensors


def weighted_sum(stacked: Tensors, weights: Tensor) -> Tensors:
    """Σ_g w_g t_g over the client dimension of [G, *] tensors. Counters (integers) have no mean: the largest stands."""
    return {n: _sum_one(t, weights) for n, t in stacked.items()}


def add(total: Tensors, part: Tensors) -> None:
    """Add the partial sum of a further group of clients to the total, in place; an empty total becomes a copy."""
    for name, tensor in part.items():
        if name not in total:
            total[name] = tensor.clone()
        elif tensor.is_floating_point():
            total[name] += tensor
        else:
            total[name] = torch.maximum(total[name], tensor)


def _sum_one(tensor: Tensor, weights: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.amax(dim=0)
    if len(tensor) == 1:
        return tensor[0] * weights[0]
    return (weights @ tensor.flatten(1)).view(tensor.shape[1:])
