"""Small helpers for tensors with a client dimension [G, *]."""

from __future__ import annotations

from torch import Tensor


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [G] in the shape in which they multiply a stacked tensor [G, *]."""
    return values.view(-1, *[1] * (like.ndim - 1))
