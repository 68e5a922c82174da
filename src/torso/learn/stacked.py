"""Helpers for tensors with a client dimension [G, *]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [G] in the shape in which they multiply a stacked tensor [G, *]."""
    return values.view(-1, *[1] * (like.ndim - 1))


def padded(first: Tensor, clients: int) -> Tensor:
    """A tensor of the first clients [K, *], with zeros for the others [G, *]."""
    missing = clients - len(first)
    return torch.cat([first, first.new_zeros(missing, *first.shape[1:])]) if missing else first


def rows_at(tensor: Tensor, places: Tensor | slice) -> Tensor:
    """The clients at these places of a stacked tensor [G, *]. One tensor that stands for all clients (it was expanded)
    is not copied for each of them."""
    return tensor[: len(places)] if isinstance(places, Tensor) and is_one_for_all(tensor) else tensor[places]


def rows_of(tensors: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """A range of clients of stacked tensors [G, *], in the same memory."""
    return {name: tensor[rows] for name, tensor in tensors.items()}


def is_one_for_all(tensor: Tensor) -> bool:
    """Whether one tensor stands for all clients of a stack [G, *]: it was expanded."""
    return tensor.stride(0) == 0


def copy_all(there: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors (`given`) into others of the same dtypes (`there`). Tensors of one dtype are copied together:
    PyTorch copies a list of one dtype in few launches, and a mixed one (BatchNorm counts in integers) tensor by
    tensor."""
    pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, tensor in zip(there, given, strict=True):
        into, source = pairs.setdefault(tensor.dtype, ([], []))
        into.append(place)
        source.append(tensor)
    for into, source in pairs.values():
        torch._foreach_copy_(into, source)


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of stacked tensors [G, *]. One tensor that stands for all clients is copied once."""
    held = [t[:1] if is_one_for_all(t) else t for t in tensors.values()]
    copies = [torch.empty_like(t) for t in held]
    copy_all(copies, held)
    pairs = zip(tensors.items(), copies, strict=True)
    return {n: copy.expand_as(t) if is_one_for_all(t) else copy for (n, t), copy in pairs}


def one_by_one(clients: Sequence[int], tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Each of G clients with a copy of its row of stacked tensors, as a stack of one [1, *]."""
    for place, client in enumerate(clients):
        yield client, copies_of(rows_of(tensors, slice(place, place + 1)))


_SMALL = 1 << 17  # tensors with at most this many numbers per client are joined


def flattened(tensors: Mapping[str, Tensor]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Stacked tensors [G, *] of one dtype as flat ones [G, n], each with the names of its tensors: all small tensors
    side by side in one, large ones each alone. On a device a launch costs more than the numbers of a small tensor."""
    small = [name for name, tensor in tensors.items() if tensor[0].numel() <= _SMALL]
    if len(small) > 1:
        yield tuple(small), torch.cat([tensors[name].reshape(len(tensors[name]), -1) for name in small], dim=1)
    for name, tensor in tensors.items():
        if len(small) < 2 or tensor[0].numel() > _SMALL:
            yield (name,), tensor.reshape(len(tensor), -1)


def masked_rows(stacked: Tensor, rows: Tensor | None) -> Tensor:
    """A stacked tensor [G, *] with zeros for the clients that `rows` [G] is false for; None: it is true for all."""
    return stacked if rows is None else torch.where(per_client(rows, stacked), stacked, 0)


def client_norms(stacked: Mapping[str, Tensor]) -> Tensor:
    """The norm of each client's tensors [G], all tensors together as one vector.

    torch splits a sum with a single result over its threads, so that its rounding depends on their number. To avoid
    this, a single row is summed twice."""
    total: Tensor | float = 0.0
    for tensor in stacked.values():
        rows = tensor.reshape(len(tensor), -1)
        total = total + (rows if len(rows) > 1 else rows.expand(2, -1)).square().sum(dim=1)[: len(rows)]
    return torch.as_tensor(total).sqrt()


def row_copies(stacked: Tensor) -> list[Tensor]:
    """Copies of the rows of a stacked tensor [G, *], so that the memory of each can be freed by itself."""
    if is_on_host(stacked) and stacked.is_contiguous():
        copied: list[Tensor] = torch.ops.aten.unbind_copy.int(stacked)  # a kernel for each row: cheap on CPU
        return copied
    rows = stacked.unbind(0)
    copies = [torch.empty_like(row) for row in rows]
    torch._foreach_copy_(copies, rows)
    return copies


Rate = float | Tensor
"""A learning rate: a number or a tensor [] for all clients of a stack, or a tensor [G] with one for each client."""


def scaled(tensor: Tensor, rate: Rate) -> Tensor:
    """A stacked tensor [G, *] times the rate."""
    return (per_client(rate, tensor) if isinstance(rate, Tensor) else rate) * tensor


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether no number is infinite or NaN, as a tensor [] on the device: the call does not wait for the device."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats or all(is_on_host(t) and math.isfinite(float(t.sum())) for t in floats):
        return torch.tensor(True)  # a finite sum has finite parts, and on CPU it costs a tenth of the norm
    return (torch.stack(torch._foreach_norm(floats, ord=torch.inf)) < torch.inf).all()  # NaN is not less


def is_on_host(tensor: Tensor) -> bool:
    """Whether the host can read the tensor's numbers without waiting for a device."""
    return tensor.device.type == "cpu"


@dataclass(frozen=True)
class HostCopy:
    """An asynchronous copy of numbers [n] from the device to the host."""

    host: Tensor
    there: torch.cuda.Event | None  # recorded after the copy; None: the numbers are on the host already

    @classmethod
    def of(cls, numbers: Tensor) -> HostCopy:
        """Start the copy."""
        if numbers.device.type != "cuda":
            return cls(numbers, None)
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record()
        return cls(host, there)

    def numbers(self) -> list[float]:
        """The numbers. Waits for the copy, but not for work that the device got later."""
        if self.there is not None:
            self.there.synchronize()
        found: list[float] = self.host.tolist()
        return found


def finite_rows(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Whether each client's numbers in stacked tensors [G, *] are finite: a tensor [G] on the device of `like` [G,
    *]."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats or (is_on_host(like) and bool(all_finite(floats))):
        return torch.ones(len(like), dtype=torch.bool, device=like.device)
    flat = (rows for _, rows in flattened({str(place): t for place, t in enumerate(floats)}))
    largest = [torch.linalg.vector_norm(rows, torch.inf, 1) for rows in flat]
    return (torch.stack(largest) < torch.inf).all(dim=0)
