"""The gradient of the input of a convolution of stride 2: pixels are separated by the parity of their row and column.

With a kernel of 3, a pixel of an even row is seen through the middle tap only, and one of an odd row through the two
outer taps. So the four kinds of pixels are four convolutions of stride 1 over the slope, with 1, 2, 2 and 4 taps, and
nothing is multiplied by zero. With a kernel of 1, only one kind of pixels is seen. The gradient is described to the
copy engine as in `turned.halved`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from torso.fast import dot_precision
from torso.nets.kernels import taps
from torso.nets.kernels.boxes import Box, Tiling, _block, _corner, _described


@triton.jit(do_not_specialize=["samples", "height", "width"])
def _apart_kernel(
    slope, weight, out, samples, height, width, in_c, out_c,
    KERNEL: tl.constexpr, TURN: tl.constexpr, PRECISION: tl.constexpr, BS: tl.constexpr, BH: tl.constexpr,
    BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One box of pixels of one kind by BN channels. Height and width are those of the slope. TURN: as in
    `turned._turned_kernel`."""
    tile, client = tl.program_id(0), tl.program_id(1)
    low, right = 1 - tile % 4 // 2, 1 - tile % 2  # the kind with the most taps comes first
    tile = tile // 4
    tiles_n = out_c // BN
    n = tile % tiles_n * BN
    sample, row, column = _corner(tile // tiles_n, samples, height, width, BS, BH, BW)
    if KERNEL == 3:
        down, across = 1 + low, 1 + right
    else:
        down, across = 1 - low, 1 - right
    total = tl.zeros((BN, BS * BH * BW), tl.float32)
    blocks = in_c // BK
    for step in range(down * across * blocks):
        place, k = step // blocks, step % blocks * BK
        i, j = place // tl.maximum(across, 1), place % tl.maximum(across, 1)
        tap = client * (KERNEL * KERNEL)
        if KERNEL == 3:
            tap += (1 + low * (2 * i - 1)) * 3 + 1 + right * (2 * j - 1)
            box = slope.load([client, sample, row + low * (1 - i), column + right * (1 - j), k])
        else:
            box = slope.load([client, sample, row, column, k])
        if TURN:  # noqa: SIM108
            w = weight.load([tap, k, n]).reshape(BK, BN).T
        else:
            w = weight.load([tap, n, k]).reshape(BN, BK)
        total = tl.dot(w, box.reshape(BS * BH * BW, BK).T, total, input_precision=PRECISION)
    value = total.to(out.dtype).T.reshape(1, BS * BH, 1, BW, BN)
    out.store([client, sample * height + row, low, column, right * out_c + n], value)


def input_gradient(slope: Tensor, weight: Tensor, like: tuple[int, ...], how: Tiling) -> Tensor:
    """The gradient of the input, of shape `like`.

    weight: [G, K, K, out, in] in the slope's dtype, K 1 or 3, padding K // 2. `how.pixels` must fit the slope
    (`turned.fits`)."""
    clients, kernel = weight.shape[:2]
    n, out_c, in_h, in_w = like
    height, width = slope.shape[2:]
    out = torch.empty(like, dtype=slope.dtype, device=slope.device, memory_format=torch.channels_last)
    turn = slope.element_size() == 2
    weight = weight if turn else taps.turned(weight)
    tile_n, block = _block(out_c, how.outputs), _block(slope.shape[1], how.inputs)
    box, samples = Box.of(height, width, how.pixels), n // clients
    matrices = weight.view(-1, *weight.shape[-2:])
    rows = in_w * out_c
    _apart_kernel[(4 * box.needed(samples, height, width) * (out_c // tile_n), clients)](
        _described(slope, clients, box, block),
        TensorDescriptor(
            matrices, list(matrices.shape), list(matrices.stride()), [1, block, tile_n] if turn else [1, tile_n, block]
        ),
        TensorDescriptor(
            out,
            [clients, samples * height, 2, width, 2 * out_c],
            [samples * in_h * rows, 2 * rows, rows, 2 * out_c, 1],
            [1, box.samples * box.rows, 1, box.columns, tile_n],
        ),
        *(samples, height, width, slope.shape[1], out_c),
        **dict(KERNEL=kernel, TURN=turn, PRECISION=dot_precision(slope)),
        **dict(BS=box.samples, BH=box.rows, BW=box.columns, BN=tile_n, BK=block),
        **dict(num_warps=how.warps, num_stages=how.stages),
    )
    return out
