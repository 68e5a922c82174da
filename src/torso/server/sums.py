"""Weighted sums over clients.

A sum is taken client by client, in the order of the participants. So neither the number of workers or threads nor the
size of a stack changes a bit. On an accelerator a stack is summed in one product instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torso.fast import is_fast
from torso.learn.stacked import flattened, is_on_host, masked_rows
from torso.nets import Tensors

_SMALL = 1 << 16  # tensors with at most this many numbers are summed for all clients of a stack in one call


def add_weighted(total: Tensors, stacked: Tensors, weights: Tensor, rows: Tensor | None = None) -> None:
    """Add Σ_g w_g t_g over the client dimension of [G, *] tensors to the total, in place.

    Counters (integers) have no mean: the total gets the largest. `rows` [G]: which clients count; None: all."""
    on_device: Tensors = {}
    for name, tensor in stacked.items():
        if not tensor.is_floating_point():
            _add_one(total, name, masked_rows(tensor, rows).amax(dim=0))
        elif is_on_host(tensor):
            _add_rows(total, name, masked_rows(tensor, rows), weights)
        else:
            on_device[name] = tensor
    if on_device:
        _add_products(total, on_device, lambda flat: _product(flat, weights, rows))


def add_stacked(total: Tensors, stacked: Tensors, rows: Tensor | None = None) -> None:
    """Add Σ_g t_g over the client dimension of [G, *] tensors to the total, in place. `rows` [G]: which clients count;
    None: all."""
    on_device: Tensors = {}
    for name, tensor in stacked.items():
        if is_on_host(tensor):
            _add_rows(total, name, masked_rows(tensor, rows))
        else:
            on_device[name] = tensor
    if on_device:
        _add_products(total, on_device, lambda flat: masked_rows(flat, rows).sum(dim=0))


def _product(flat: Tensor, weights: Tensor, rows: Tensor | None) -> Tensor:
    """Σ_g w_g t_g [n] of t [G, n]. A single client of weight 1 keeps its bits."""
    if flat.dtype == weights.dtype == torch.float32 and is_fast(flat):
        from torso.server.sum_kernel import weighted_sum

        return weighted_sum(flat, weights, rows)
    flat = masked_rows(flat, rows)
    return flat[0] * weights[0] if len(flat) == 1 else weights @ flat


def _add_products(total: Tensors, stacked: Tensors, sum_of: Callable[[Tensor], Tensor]) -> None:
    """Add sums over a stack to the total, with few launches: small tensors of a dtype together. `sum_of` makes [n] of
    [G, n]."""
    dtypes = {tensor.dtype for tensor in stacked.values()}
    for dtype in sorted(dtypes, key=str):
        alike = {name: tensor for name, tensor in stacked.items() if tensor.dtype == dtype}
        for names, flat in flattened(alike):
            parts = sum_of(flat).split([alike[name][0].numel() for name in names])  # type: ignore[no-untyped-call]
            for name, part in zip(names, parts, strict=True):
                mine = part.view(alike[name].shape[1:])
                total[name] = total[name] + mine if name in total else mine


def add(total: Tensors, part: Tensors) -> None:
    """Add one client's tensors, or a partial sum, to the total, in place; an empty total becomes a copy."""
    for name, tensor in part.items():
        _add_one(total, name, tensor)


def _add_one(total: Tensors, name: str, tensor: Tensor) -> None:
    """Add one tensor to the total, in place; the total never shares memory with it."""
    if name not in total:
        total[name] = tensor.clone()
    elif tensor.is_floating_point():
        total[name] += tensor
    else:
        total[name] = torch.maximum(total[name], tensor)


def _add_rows(total: Tensors, name: str, stacked: Tensor, weights: Tensor | None = None) -> None:
    """Add Σ_g w_g t_g to the total, client by client. For many small rows NumPy does that in one call: `accumulate` by
    definition, and `reduce` over the first axis if a row has more than one number (tests/server/test_sums.py)."""
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
