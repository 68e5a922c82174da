"""Small helpers for tensors with a client dimension [G, *]."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [G] in the shape in which they multiply a stacked tensor [G, *]."""
    return values.view(-1, *[1] * (like.ndim - 1))


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """One truth on the device, which nobody has waited for yet: whether no number is infinite or NaN."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats:
        return torch.tensor(True)
    return torch.stack(torch._foreach_norm(floats, ord=torch.inf)).isfinite().all()
