"""A Triton kernel that gathers, crops, mirrors and normalises images in one pass. Import it only if
`torso.fast.is_fast`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["height", "width"])
def _look_kernel(
    images, index, bits, mean, std, out, height, width,
    channels: tl.constexpr, PAD: tl.constexpr, FLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute a part of one image. The random bits are read as in augment.py, which defines the result."""
    which = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = height * width * channels
    channel, pixel = place % channels, place // channels
    row, column = pixel // width, pixel % width
    if FLIP or PAD > 0:
        coins = tl.load(bits + which)
        if FLIP:
            column = tl.where((coins >> 40) & 1 == 1, width - 1 - column, column)
        row += ((coins & 0xFFFFF) % (2 * PAD + 1) - PAD).to(tl.int32)
        column += (((coins >> 20) & 0xFFFFF) % (2 * PAD + 1) - PAD).to(tl.int32)
    seen = (place < values) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    image = images + tl.load(index + which) * values
    value = tl.load(image + (row * width + column) * channels + channel, mask=seen, other=0).to(tl.float32)
    value = (value - tl.load(mean + channel)) / tl.load(std + channel)
    tl.store(out + which.to(tl.int64) * values + place, value.to(out.dtype.element_ty), mask=place < values)


def look(
    images: Tensor,
    index: Tensor,
    bits: Tensor | None,
    pad: int,
    flip: bool,
    mean: Tensor,
    std: Tensor,
    as_type: torch.dtype,
) -> Tensor:
    """The network input [G, B, C, H, W], in channels-last memory, of uint8 images [n, H, W, C] at index [G, B]."""
    _, height, width, channels = images.shape
    out = torch.empty(*index.shape, height, width, channels, dtype=as_type, device=images.device)
    block = 1024
    _look_kernel[(index.numel(), triton.cdiv(height * width * channels, block))](
        *(images, index.contiguous(), index if bits is None else bits.contiguous(), mean, std, out, height, width),
        **dict(channels=channels, PAD=pad, FLIP=flip, BLOCK=block),
    )
    return out.movedim(-1, 2)
