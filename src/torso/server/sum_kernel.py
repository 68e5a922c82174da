"""A Triton kernel for weighted sums over clients in one pass. Import this file only if `is_fast` is true."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["clients"])
def _sum_kernel(flat, weights, rows, out, clients, size, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK numbers of the sum, added client by client. A client that does not count is not read: it may have NaN."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, at = place < size, place
    total = tl.zeros([BLOCK], tl.float32)
    for client in range(clients):
        counts = inside
        if HAS_ROWS:
            counts = inside & (tl.load(rows + client) != 0)
        total += tl.load(weights + client) * tl.load(flat + at, mask=counts, other=0.0)
        at += size
    tl.store(out + place, total, mask=inside)


def weighted_sum(flat: Tensor, weights: Tensor, rows: Tensor | None) -> Tensor:
    """Σ_g w_g t_g [n] of t [G, n] in float32, over the clients for which `rows` [G] is true; None: all."""
    clients, size = flat.shape
    out, block = torch.empty(size, device=flat.device), 1024
    _sum_kernel[(triton.cdiv(size, block),)](
        *(flat.contiguous(), weights.contiguous(), weights if rows is None else rows, out, clients, size),
        HAS_ROWS=rows is not None,
        BLOCK=block,
    )
    return out
