"""Small helpers for tensors with a client dimension [G, *]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [G] in the shape in which they multiply a stacked tensor [G, *]."""
    return values.view(-1, *[1] * (like.ndim - 1))


def padded(first: Tensor, clients: int) -> Tensor:
    """That of the first clients [K, *] with zeros for the others [G, *]."""
    missing = clients - len(first)
    return torch.cat([first, first.new_zeros(missing, *first.shape[1:])]) if missing else first


def rows_at(tensor: Tensor, places: Tensor | slice) -> Tensor:
    """The clients at these places of a stacked tensor [G, *]; one tensor that stands for all clients (it was expanded)
    is not copied for each of them."""
    return tensor[: len(places)] if isinstance(places, Tensor) and is_one_for_all(tensor) else tensor[places]


def rows_of(tensors: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Some neighbours of stacked tensors [G, *], in the same memory."""
    return {name: tensor[rows] for name, tensor in tensors.items()}


def is_one_for_all(tensor: Tensor) -> bool:
    """Whether one tensor stands for all clients of a stack [G, *]: it was expanded."""
    return tensor.stride(0) == 0


def copy_of(tensor: Tensor) -> Tensor:
    """A copy in memory of its own; of one tensor that stands for all clients, one."""
    return tensor[:1].clone().expand_as(tensor) if is_one_for_all(tensor) else tensor.clone()


def lengths(stacked: Mapping[str, Tensor]) -> Tensor:
    """‖·‖ of each of G clients [G], all tensors together.

    Torch splits a sum that has one result over its threads, and rounds by their number: a single row is taken twice."""
    total: Tensor | float = 0.0
    for tensor in stacked.values():
        rows = tensor.reshape(len(tensor), -1)
        total = total + (rows if len(rows) > 1 else rows.expand(2, -1)).square().sum(dim=1)[: len(rows)]
    return torch.as_tensor(total).sqrt()


def rows_apart(stacked: Tensor) -> list[Tensor]:
    """The rows of a stacked tensor [G, *], each in memory of its own: that of the others can be given back."""
    if free_to_read(stacked) and stacked.is_contiguous():
        copied: list[Tensor] = torch.ops.aten.unbind_copy.int(stacked)  # a kernel for each row: cheap on CPU
        return copied
    rows = stacked.unbind(0)
    copies = [torch.empty_like(row) for row in rows]
    torch._foreach_copy_(copies, rows)
    return copies


Rate = float | Tensor
"""A learning rate: of all clients of a stack, or of each of them [G]."""


def scaled(tensor: Tensor, rate: Rate) -> Tensor:
    """A stacked tensor [G, *] times the rate."""
    return (per_client(rate, tensor) if isinstance(rate, Tensor) else rate) * tensor


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """One truth on the device, which nobody has waited for yet: whether no number is infinite or NaN."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats or all(free_to_read(t) and math.isfinite(float(t.sum())) for t in floats):
        return torch.tensor(True)  # a finite sum has finite parts, and on CPU it costs a tenth of the norm
    return torch.stack(torch._foreach_norm(floats, ord=torch.inf)).isfinite().all()


def free_to_read(tensor: Tensor) -> bool:
    """Whether its numbers can be looked at without waiting for a device."""
    return tensor.device.type == "cpu"


def finite_rows(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """The same for each client of stacked tensors [G, *]: truths [G] on the device of `like` [G, *]."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats or (free_to_read(like) and bool(all_finite(floats))):
        return torch.ones(len(like), dtype=torch.bool, device=like.device)
    largest = [t if t.ndim == 1 else torch.linalg.vector_norm(t, torch.inf, tuple(range(1, t.ndim))) for t in floats]
    return torch.stack([t.isfinite() for t in largest]).all(dim=0)
