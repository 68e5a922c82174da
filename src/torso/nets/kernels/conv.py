"""A convolution whose weights differ from client to client, as an implicit matrix product.

Forward and the gradient of the input are one kernel: an output pixel gathers, tap by tap, the input pixel that it sees.
The gradient of the weight is a product over all pixels of a client.
G clients, B samples; in, out: channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from torso.fast import dot_precision

_PROGRAMS = 4 * 132  # enough to keep every multiprocessor of a large GPU busy


@triton.jit
def _seen(place, tap, size, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr):
    """Which input row (or column) an output row sees through a tap, and whether there is one; BACK: the transpose."""
    if BACK:
        far = place + PAD - tap
        at = far // STRIDE
        inside = (far >= 0) & (at < size)
        if STRIDE > 1:
            inside = inside & (far % STRIDE == 0)
    else:
        at = place * STRIDE + tap - PAD
        inside = (at >= 0) & (at < size)
    return at, inside


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w"])
def _gather_kernel(
    x,
    weight,
    bias,
    out,
    samples,
    in_h,
    in_w,
    in_c,
    out_h,
    out_w,
    out_c,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BACK: tl.constexpr,
    FLAT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out[pixel, n] = Σ over tap and k of x[pixel seen through tap, k] · weight[tap, k, n], for one client.

    The weight is stored [G, tap, layer's out, layer's in]; going BACK, k and n change places. FLAT: (tap, k) is one
    index, for inputs of few channels."""
    tiles_n = tl.cdiv(out_c, BN)
    tile, client = tl.program_id(0), tl.program_id(1)
    pixel = (tile // tiles_n) * BM + tl.arange(0, BM)
    n = (tile % tiles_n) * BN + tl.arange(0, BN)
    pixels, good_n = samples * out_h * out_w, n < out_c
    good = pixel < pixels
    column, row = pixel % out_w, pixel // out_w % out_h
    sample = client * samples + pixel // (out_w * out_h)
    image = x + sample.to(tl.int64) * (in_h * in_w * in_c)
    weight += client.to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    by_k, by_n = (out_c, 1) if BACK else (1, in_c)
    total = tl.zeros((BM, BN), tl.float32)
    if FLAT:
        for start in range(0, KERNEL * KERNEL * in_c, BK):
            flat = start + tl.arange(0, BK)
            tap, k = flat // in_c, flat % in_c
            h, in_rows = _seen(row[:, None], (tap // KERNEL)[None, :], in_h, STRIDE, PAD, BACK)
            w, in_columns = _seen(column[:, None], (tap % KERNEL)[None, :], in_w, STRIDE, PAD, BACK)
            good_k = tap < KERNEL * KERNEL
            mask = good[:, None] & in_rows & in_columns & good_k[None, :]
            a = tl.load(image[:, None] + (h * in_w + w) * in_c + k[None, :], mask=mask, other=0.0)
            at = (tap * in_c * out_c + k * by_k)[:, None] + (n * by_n)[None, :]
            b = tl.load(weight + at, mask=good_k[:, None] & good_n[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        blocks = in_c // BK
        for step in range(KERNEL * KERNEL * blocks):
            tap, k = step // blocks, (step % blocks) * BK + tl.arange(0, BK)
            h, in_rows = _seen(row, tap // KERNEL, in_h, STRIDE, PAD, BACK)
            w, in_columns = _seen(column, tap % KERNEL, in_w, STRIDE, PAD, BACK)
            at = image + (h * in_w + w) * in_c
            a = tl.load(at[:, None] + k[None, :], mask=(good & in_rows & in_columns)[:, None], other=0.0)
            at = tap * in_c * out_c + (k * by_k)[:, None] + (n * by_n)[None, :]
            b = tl.load(weight + at, mask=good_n[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + client * out_c + n, mask=good_n, other=0.0)[None, :]
    at = out + (client * pixels + pixel).to(tl.int64)[:, None] * out_c + n[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=good[:, None] & good_n[None, :])


@triton.jit(do_not_specialize=["samples", "in_h", "in_w", "out_h", "out_w", "chunk"])
def _weight_kernel(
    x,
    slope,
    grad,
    samples,
    in_h,
    in_w,
    in_c,
    out_h,
    out_w,
    out_c,
    chunk,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    FLAT: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """grad[n, k, tap] = Σ over a chunk of a client's pixels of x[pixel seen through tap, k] · slope[pixel, n]."""
    tile, part, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_n = tl.cdiv(out_c, BN)
    n = (tile % tiles_n) * BN + tl.arange(0, BN)
    flat = (tile // tiles_n) * BK + tl.arange(0, BK)
    if FLAT:
        tap, k = flat // in_c, flat % in_c
    else:
        blocks = in_c // BK
        tap, k = tile // tiles_n // blocks, (tile // tiles_n % blocks) * BK + tl.arange(0, BK)
    good_n, good_k = n < out_c, flat < KERNEL * KERNEL * in_c
    pixels = samples * out_h * out_w
    slope += client.to(tl.int64) * pixels * out_c
    total = tl.zeros((BK, BN), tl.float32)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, pixels), BM):
        pixel = start + tl.arange(0, BM)
        good = pixel < pixels
        column, row = pixel % out_w, pixel // out_w % out_h
        sample = client * samples + pixel // (out_w * out_h)
        image = x + sample.to(tl.int64) * (in_h * in_w * in_c)
        if FLAT:
            h, in_rows = _seen(row[:, None], (tap // KERNEL)[None, :], in_h, STRIDE, PAD, False)
            w, in_columns = _seen(column[:, None], (tap % KERNEL)[None, :], in_w, STRIDE, PAD, False)
            mask = good[:, None] & in_rows & in_columns & good_k[None, :]
            a = tl.load(image[:, None] + (h * in_w + w) * in_c + k[None, :], mask=mask, other=0.0)
        else:
            h, in_rows = _seen(row, tap // KERNEL, in_h, STRIDE, PAD, False)
            w, in_columns = _seen(column, tap % KERNEL, in_w, STRIDE, PAD, False)
            at = image + (h * in_w + w) * in_c
            a = tl.load(at[:, None] + k[None, :], mask=(good & in_rows & in_columns)[:, None], other=0.0)
        b = tl.load(slope + pixel[:, None] * out_c + n[None, :], mask=good[:, None] & good_n[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    grad += (part * tl.num_programs(2) + client).to(tl.int64) * (KERNEL * KERNEL) * in_c * out_c
    at = (n * in_c)[None, :] * (KERNEL * KERNEL) + (k * KERNEL * KERNEL + tap)[:, None]
    tl.store(grad + at, total, mask=good_k[:, None] & good_n[None, :])


def _blocks(channels: int, kernel: int, wide: int) -> tuple[int, bool]:
    """How many inputs are taken at a time, and whether taps and channels are one index."""
    for size in (64, 32, 16):
        if size <= wide and channels % size == 0:
            return size, False
    return min(wide, max(16, triton.next_power_of_2(kernel * kernel * channels))), True


def _tile(channels: int) -> int:
    return min(128, max(16, triton.next_power_of_2(channels)))


def _gather(
    x: Tensor, weight: Tensor, bias: Tensor | None, like: tuple[int, ...], stride: int, padding: int, back: bool
) -> Tensor:
    """The output (back: the input's gradient) of shape `like`; weight [G, K, K, out, in] in x's dtype."""
    (n, in_c, in_h, in_w), (_, out_c, out_h, out_w) = x.shape, like
    clients, kernel = weight.shape[:2]
    out = torch.empty(like, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, tile_n = n // clients * out_h * out_w, _tile(out_c)
    many = clients * triton.cdiv(pixels, 128) * triton.cdiv(out_c, tile_n) >= _PROGRAMS // 2
    tile_m = 128 if many else 64
    block, flat = _blocks(in_c, kernel, 64 if x.element_size() == 2 else 32)
    _gather_kernel[(triton.cdiv(pixels, tile_m) * triton.cdiv(out_c, tile_n), clients)](
        *(x, weight, x if bias is None else bias, out, n // clients, in_h, in_w, in_c, out_h, out_w, out_c),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, BACK=back, FLAT=flat, HAS_BIAS=bias is not None),
        **dict(PRECISION=dot_precision(x), BM=tile_m, BN=tile_n, BK=block),
        **dict(num_warps=8 if tile_m * tile_n > 128 * 64 else 4, num_stages=3),
    )
    return out


def _weight_gradient(x: Tensor, slope: Tensor, clients: int, kernel: int, stride: int, padding: int) -> Tensor:
    """[G, out, in, K, K] in float32."""
    (n, in_c, in_h, in_w), (_, out_c, out_h, out_w) = x.shape, slope.shape
    tile_n = min(64, _tile(out_c))
    block, flat = _blocks(in_c, kernel, 64)
    tiles = triton.cdiv(kernel * kernel * in_c, block) * triton.cdiv(out_c, tile_n)
    pixels, step = n // clients * out_h * out_w, 64 if x.element_size() == 2 else 32
    parts = max(1, min(_PROGRAMS // (tiles * clients), pixels // (8 * step)))
    chunk = triton.cdiv(pixels, parts * step) * step
    grad = torch.empty(parts, clients, out_c, in_c, kernel, kernel, dtype=torch.float32, device=x.device)
    _weight_kernel[(tiles, parts, clients)](
        *(x, slope, grad, n // clients, in_h, in_w, in_c, out_h, out_w, out_c, chunk),
        **dict(KERNEL=kernel, STRIDE=stride, PAD=padding, FLAT=flat, PRECISION=dot_precision(x)),
        **dict(BM=step, BN=tile_n, BK=block, num_warps=4, num_stages=3),
    )
    return grad[0] if parts == 1 else grad.sum(0)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        clients, out_c, _, kernel, _ = weight.shape
        x = x.contiguous(memory_format=torch.channels_last)
        ready = weight.permute(0, 3, 4, 1, 2).to(x.dtype).contiguous()
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:])
        out = _gather(x, ready, bias, (x.shape[0], out_c, height, width), stride, padding, back=False)
        ctx.save_for_backward(x, ready)
        ctx.how = clients, kernel, stride, padding, bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, ready = ctx.saved_tensors
        clients, kernel, stride, padding, has_bias = ctx.how
        slope = slope.contiguous(memory_format=torch.channels_last)
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_x = _gather(slope, ready, None, tuple(x.shape), stride, padding, back=True)
        if ctx.needs_input_grad[1]:
            to_weight = _weight_gradient(x, slope, clients, kernel, stride, padding)
        if has_bias and ctx.needs_input_grad[2]:
            to_bias = slope.view(clients, -1, *slope.shape[1:]).sum((1, 3, 4), dtype=torch.float32)
        return to_x, to_weight, to_bias, None, None


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Maps [G·B, in, H, W] through square kernels [G, out, in, K, K] (float32) and biases [G, out]."""
    return _Convolution.apply(x, weight, bias, stride, padding)  # type: ignore[no-any-return,no-untyped-call]


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        clients, out_c, in_c = weight.shape
        n, _, height, width = x.shape
        x = x.contiguous(memory_format=torch.channels_last)
        rows = x.permute(0, 2, 3, 1).reshape(clients, -1, in_c)
        ready = weight.to(x.dtype)
        ctx.save_for_backward(rows, ready)
        return torch.bmm(rows, ready.mT).view(n, height, width, out_c).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows, ready = ctx.saved_tensors
        n, out_c, height, width = slope.shape
        slope = slope.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).reshape(len(rows), -1, out_c)
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(slope, ready).view(n, height, width, -1).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            to_weight = _product(slope.mT, rows)
        return to_x, to_weight


def _product(a: Tensor, b: Tensor) -> Tensor:
    """[G, m, k] × [G, k, n] in float32."""
    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b).float()


def pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """Maps [G·B, in, H, W] through matrices [G, out, in] (float32): a product per client."""
    return _Pointwise.apply(x, weight)  # type: ignore[no-any-return,no-untyped-call]
