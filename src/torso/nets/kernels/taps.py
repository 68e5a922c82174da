"""Copies weights between the order in which they are stored, [G, out, in, K, K], and that in which kernels read them.

A kernel needs the weights of one tap next to each other: [G, tap, out, in]. For a client that is the transpose of a
matrix [out·in, taps]. With different weights for each of G clients these copies take as long as the products
themselves, so both directions read and write whole cache lines.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _spread_kernel(weight, out, by_client, size, row, TAPS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """out[tap, place] = weight[place, tap] for every row of a client: `size` places in rows of length `row`."""
    client = tl.program_id(1).to(tl.int64)
    place, tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = (tap < TAPS)[:, None] & (place < size)[None, :]
    value = tl.load(weight + client * by_client + place[None, :] * TAPS + tap[:, None], mask=inside)
    at = client * TAPS * size + tap[:, None] * row + (place // row * (TAPS * row) + place % row)[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["parts"])
def _collect_kernel(shares, grad, parts, size, TAPS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """grad[place, tap] = Σ over parts of shares[part, tap, place], for one client."""
    client, clients = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    place, tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = (tap < TAPS)[:, None] & (place < size)[None, :]
    at = tap[:, None] * size + place[None, :]
    total = tl.zeros((WIDE, BLOCK), tl.float32)
    for part in range(parts):
        total += tl.load(shares + (part * clients + client) * TAPS * size + at, mask=inside, other=0.0)
    tl.store(grad + client * TAPS * size + place[None, :] * TAPS + tap[:, None], total, mask=inside)


@triton.jit
def _turn_kernel(a, out, rows, columns, BLOCK: tl.constexpr):
    """out[k, n] = a[n, k], for one of many matrices."""
    matrix = tl.program_id(2).to(tl.int64) * rows * columns
    n, k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (n < rows)[:, None] & (k < columns)[None, :]
    value = tl.load(a + matrix + n[:, None] * columns + k[None, :], mask=inside)
    tl.store(out + matrix + k[:, None] * rows + n[None, :], value.T, mask=inside.T)


def _cut(taps: int) -> dict[str, int]:
    """Arguments of a kernel that works on tiles of 2,048 values."""
    wide = int(triton.next_power_of_2(taps))
    return dict(TAPS=taps, WIDE=wide, BLOCK=2048 // wide, num_warps=4)


def spread(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights [G, out, in, K, K] as [G, K, K, out, in] in a dtype. A weight that all clients share may be an expanded
    view."""
    clients, out_c, in_c, kernel, _ = weight.shape
    return _spread(weight, dtype, out_c * in_c).view(clients, kernel, kernel, out_c, in_c)


def spread_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights [G, out, in, K, K] as [G, out, K·K·in] in a dtype."""
    return _spread(weight, dtype, weight.shape[2])


def _spread(weight: Tensor, dtype: torch.dtype, row: int) -> Tensor:
    clients, out_c, in_c, kernel, _ = weight.shape
    if not weight[0].is_contiguous():
        weight = weight.contiguous()
    out = torch.empty(clients, out_c, kernel * kernel * in_c, dtype=dtype, device=weight.device)
    size, how = out_c * in_c, _cut(kernel * kernel)
    _spread_kernel[(triton.cdiv(size, how["BLOCK"]), clients)](weight, out, weight.stride(0), size, row, **how)
    return out


def collect(shares: Tensor) -> Tensor:
    """The sum over parts of [parts, G, K, K, out, in], as [G, out, in, K, K]."""
    parts, clients, kernel, _, out_c, in_c = shares.shape
    size, taps = out_c * in_c, kernel * kernel
    if taps == 1:
        return (shares[0] if parts == 1 else shares.sum(0)).view(clients, out_c, in_c, 1, 1)
    grad = torch.empty(clients, out_c, in_c, kernel, kernel, dtype=torch.float32, device=shares.device)
    how = _cut(taps)
    _collect_kernel[(triton.cdiv(size, how["BLOCK"]), clients)](shares, grad, parts, size, **how)
    return grad


def turned(ready: Tensor) -> Tensor:
    """Weights [G, K, K, out, in] transposed to [G, K, K, in, out]."""
    *front, rows, columns = ready.shape
    out = torch.empty(*front, columns, rows, dtype=ready.dtype, device=ready.device)
    grid = triton.cdiv(columns, 32), triton.cdiv(rows, 32), ready[..., 0, 0].numel()
    _turn_kernel[grid](ready, out, rows, columns, BLOCK=32, num_warps=4)
    return out
