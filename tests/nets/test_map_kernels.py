"""Kernels for maps without BatchNorm against plain PyTorch: on CUDA, or anywhere under TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.fast import kernels_run_here, plain_path
from torso.nets.dropout import Dropout
from torso.nets.stacked_linear import stacked_linear

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
needs_kernels = pytest.mark.skipif(not kernels_run_here(), reason="no Triton with CUDA, nor TRITON_INTERPRET=1")
KINDS = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


def drawn(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=draw).to(DEVICE, kind)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(4, 3, 6, 8), (2, 5, 7, 5), (3, 64, 14, 14)])
def test_pool_and_relu(shape: tuple[int, ...], kind: torch.dtype) -> None:
    """The same bits, in the backward pass too: the first of equal values gets the gradient, and NaN stays NaN."""
    from torso.nets.kernels.maps import pooled

    x = drawn(*shape, kind=kind).round(decimals=1).contiguous(memory_format=torch.channels_last)  # many are equal
    x[0, 0, 0, 1] = torch.nan
    ends = []
    for fused in (True, False):
        leaf = x.clone().requires_grad_()
        out = pooled(leaf) if fused else F.relu(F.max_pool2d(leaf, 2))
        slope = drawn(*out.shape, kind=kind)
        (grad,) = torch.autograd.grad(out, leaf, slope)
        ends.append((out, grad))
    for found, wanted in zip(*ends, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert bool(ends[0][0].isnan().any())


@needs_kernels
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(6, 5, 3, 3), (6, 8, 4, 4), (3, 2, 7), (3, 2, 1030)])
@pytest.mark.parametrize("place", [0, 1])
def test_dropout(shape: tuple[int, ...], kind: torch.dtype, place: int) -> None:
    """The mask that dropout.py defines, for three clients with two samples each, and the same gradient."""
    layer = Dropout(0.25, place)
    layer.keys = torch.tensor([11, 2**62 + 12, 13], device=DEVICE)
    x = drawn(*shape, kind=kind)
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    slope, ends = drawn(*shape, kind=kind), []
    for fused in (True, False):
        leaf = x.clone().requires_grad_()
        if fused:
            out = layer(leaf)
        else:
            with plain_path():
                out = layer(leaf)
        ends.append((out, *torch.autograd.grad(out, leaf, slope)))
    for found, wanted in zip(*ends, strict=True):
        torch.testing.assert_close(found, wanted)
        assert torch.equal(found == 0, wanted == 0)
    assert 0 < int((ends[0][0] == 0).sum()) < x.numel()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_stacked_linear_layer(kind: torch.dtype, bias: bool) -> None:
    """Three clients. Gradients have the memory layout and the dtype of the weights."""
    exact = torch.float64 if kind == torch.float64 else torch.float32
    x, weight = drawn(3, 4, 6, kind=kind), drawn(3, 5, 6, kind=exact)
    shift = drawn(3, 5, kind=exact) if bias else None
    leaves = [t.clone().requires_grad_() for t in (x, weight, shift) if t is not None]
    out = stacked_linear(leaves[0], leaves[1], leaves[2] if bias else None)
    slope = drawn(3, 4, 5, kind=kind)
    grads = torch.autograd.grad(out, leaves, slope)
    double = [t.detach().double().requires_grad_() for t in leaves]
    wanted = torch.einsum("gbd,god->gbo", double[0], double[1]) + (double[2].unsqueeze(1) if bias else 0)
    near = {"rtol": 2e-2, "atol": 2e-2} if kind == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(out.double(), wanted, **near)
    for leaf, found, by_hand in zip(leaves, grads, torch.autograd.grad(wanted, double, slope.double()), strict=True):
        assert found.dtype == leaf.dtype
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), by_hand, **near)
