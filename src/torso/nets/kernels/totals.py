"""Sums per channel over all pixels of a client: the gradient of a bias."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 4 * 132  # enough to keep every multiprocessor of a large GPU busy


@triton.jit(do_not_specialize=["pixels", "chunk"])
def _total_kernel(slope, out, pixels, channels, chunk, BP: tl.constexpr, BC: tl.constexpr):
    """out[part, c] = Σ over a chunk of a client's pixels of slope[pixel, c]."""
    part, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    slope += client * pixels * channels
    total = tl.zeros((BP, BC), tl.float32)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, pixels), BP):
        pixel = start + tl.arange(0, BP)
        inside = (pixel < pixels)[:, None] & (c < channels)[None, :]
        total += tl.load(slope + pixel[:, None] * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
    at = (part * tl.num_programs(2) + client) * channels + c
    tl.store(out + at, tl.sum(total, 0), mask=c < channels)


def totals(slope: Tensor, clients: int) -> Tensor:
    """The sums [G, C] in float32 of maps [G·B, C, H, W] with channels-last memory. The order of the sum is fixed."""
    n, channels, height, width = slope.shape
    pixels, block = n // clients * height * width, min(128, int(triton.next_power_of_2(channels)))
    tile, across = 4096 // block, triton.cdiv(channels, block)
    parts = max(1, min(triton.cdiv(_PROGRAMS, clients * across), pixels // (2 * tile)))
    chunk = triton.cdiv(pixels, parts * tile) * tile
    parts = triton.cdiv(pixels, chunk)
    out = torch.empty(parts, clients, channels, dtype=torch.float32, device=slope.device)
    _total_kernel[(across, parts, clients)](slope, out, pixels, channels, chunk, BP=tile, BC=block, num_warps=4)
    return out[0] if parts == 1 else out.sum(0)
