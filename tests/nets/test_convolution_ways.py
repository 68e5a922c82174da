"""Every way of computing a stacked convolution against PyTorch's own, client by client, in float64."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.fast import kernels_run_here

if not kernels_run_here():
    pytest.skip("no Triton with CUDA, nor TRITON_INTERPRET=1", allow_module_level=True)

from torso.nets.kernels import conv, taps
from torso.nets.kernels.boxes import Tiling
from torso.nets.kernels.totals import totals
from torso.nets.kernels.ways import Layer, Way, candidates, way
from torso.precision import computing

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
TYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
G, B = 2, 3
SMALL = Tiling(32, 16, 16, 4, 2)  # so small that a small layer has several tiles


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == wanted.shape
    error = (found.double() - wanted).norm() / wanted.norm()
    assert error < CLOSE[dtype], float(error)


def plain(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    each = zip(x.unflatten(0, (G, B)), weight, bias, strict=True)
    return torch.cat([F.conv2d(one, w, b, stride, padding) for one, w, b in each])


TURNED, COLUMNS, GATHER = Way("turned", SMALL), Way("columns"), Way("gather")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("ways", "inputs", "outputs", "kernel", "stride", "padding", "side"),
    [
        ((TURNED, TURNED, TURNED), 16, 32, 3, 1, 1, 4),
        ((TURNED, TURNED, Way("turned", SMALL._replace(taps=3))), 32, 16, 3, 1, 1, 8),
        ((TURNED, TURNED, Way("lines", SMALL)), 16, 32, 3, 1, 1, 8),
        ((TURNED, TURNED, Way("lines", SMALL)), 16, 32, 1, 1, 0, 5),
        ((TURNED, COLUMNS, Way("lines", SMALL._replace(taps=3))), 16, 16, 3, 1, 1, 4),
        ((COLUMNS, TURNED, COLUMNS), 16, 16, 3, 1, 1, 2),
        ((COLUMNS, COLUMNS, COLUMNS), 16, 32, 3, 2, 1, 7),
        ((COLUMNS, COLUMNS, COLUMNS), 16, 32, 1, 2, 0, 6),
        ((GATHER, COLUMNS, COLUMNS), 16, 24, 3, 2, 1, 4),
        ((TURNED, TURNED, TURNED), 16, 32, 3, 2, 1, 16),
        ((TURNED, TURNED, COLUMNS), 32, 48, 3, 2, 1, 8),
        ((TURNED, TURNED, Way("turned", SMALL._replace(pixels=16))), 48, 16, 3, 2, 1, 8),
        ((TURNED, TURNED, TURNED), 32, 16, 1, 2, 0, 16),
        ((TURNED, COLUMNS, COLUMNS), 16, 32, 3, 2, 1, 6),
        ((TURNED, TURNED, TURNED), 32, 16, 1, 1, 0, 4),
    ],
)
def test_a_way_is_the_convolution(
    ways: tuple[Way, Way, Way],
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: int,
    side: int,
    dtype: torch.dtype,
) -> None:
    weight, bias = random(G, outputs, inputs, kernel, kernel, seed=1) / kernel, random(G, outputs, seed=2)
    x = random(G * B, inputs, side, side).to(dtype).contiguous(memory_format=torch.channels_last)
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    wanted = plain(*wide, stride, padding)
    slope = random(*wanted.shape, seed=3).to(dtype).contiguous(memory_format=torch.channels_last)
    to_x, to_weight, _ = torch.autograd.grad(wanted, wide, slope.double())
    shape = conv.Shape(G, kernel, stride, padding, tuple(x.shape), tuple(wanted.shape), *ways)
    seen = shape.columns(x) if ways[0].name == "columns" else None
    out, _ = conv.forward(x, seen, conv.ready(weight, dtype, ways[0]), bias, shape)
    assert not out._is_view()  # a view would forbid an in-place activation after an autograd Function
    close(out, wanted.detach(), dtype)
    close(conv.input_gradient(slope, conv.ready(weight, dtype, ways[1], back=True), shape), to_x, dtype)
    close(conv.weight_gradient(x, seen, slope, shape), to_weight, dtype)


@pytest.mark.parametrize("masked", [False, True])
def test_statistics_of_a_turned_product(masked: bool) -> None:
    """They are those of the output over real samples: mean, squared deviation and number for each part."""
    from torso.nets.kernels import turned

    x = random(G * B, 16, 4, 4).contiguous(memory_format=torch.channels_last)
    real = torch.tensor([[1.0, 0, 1], [1, 1, 1]], device=DEVICE) if masked else None
    like = (G * B, 32, 4, 4)
    weight = taps.spread(random(G, 32, 16, 3, 3, seed=1), torch.float32)
    out, sums = turned.convolve(x, weight, None, like, 1, SMALL, counted=True, real=real)
    assert sums is not None
    mean, square, number = sums.unbind(2)
    count = number.sum(1)
    whole = (mean * number).sum(1) / count
    spread = (square + number * (mean - whole[:, None]).square()).sum(1) / count
    for g in range(G):
        values = out.unflatten(0, (G, B))[g][slice(None) if real is None else real[g] > 0]
        assert count[g, 0] == values[:, 0].numel()
        torch.testing.assert_close(whole[g], values.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(spread[g], values.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "side"),
    [(16, 32, 3, 1, 4), (32, 16, 3, 1, 8), (16, 32, 3, 2, 6), (16, 32, 3, 2, 16)],
)
def test_the_ways_that_are_chosen(
    inputs: int, outputs: int, kernel: int, stride: int, side: int, dtype: torch.dtype
) -> None:
    """Outputs and gradients of a layer as a network calls it, in tf32 and bf16."""
    weight, bias = random(G, outputs, inputs, kernel, kernel, seed=1) / kernel, random(G, outputs, seed=2)
    x = random(G * B, inputs, side, side).to(dtype).contiguous(memory_format=torch.channels_last)
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    wanted = plain(*wide, stride, kernel // 2)
    slope = random(*wanted.shape, seed=3).to(dtype)
    near = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    with computing("tf32"):
        out, _ = conv.convolution(*near, stride, kernel // 2)
        grads = torch.autograd.grad(out, near, slope)
    exact = dtype if INTERPRETED else torch.bfloat16  # tf32 lies between
    close(out, wanted.detach(), exact)
    for found, expected in zip(grads, torch.autograd.grad(wanted, wide, slope.double()), strict=True):
        close(found, expected, exact)


def test_totals_are_sums_over_pixels() -> None:
    """In several parts, the last of them short, and channels beyond a block."""
    for samples, channels, side in ((3, 24, 3), (5, 160, 11)):
        slope = random(G * samples, channels, side, side).contiguous(memory_format=torch.channels_last)
        wanted = slope.double().unflatten(0, (G, samples)).sum((1, 3, 4))
        torch.testing.assert_close(totals(slope, G).double(), wanted, rtol=1e-5, atol=1e-4)


def test_weights_there_and_back() -> None:
    weight = random(3, 8, 5, 3, 3)
    there = taps.spread(weight, torch.float32)
    assert torch.equal(there, weight.permute(0, 3, 4, 1, 2))
    assert torch.equal(taps.spread(weight[:1].expand(2, -1, -1, -1, -1), torch.float32)[1], there[0])
    assert torch.equal(taps.spread_rows(weight, torch.float32), weight.flatten(3).mT.flatten(2))
    assert torch.equal(taps.turned(there), there.mT)
    assert torch.equal(taps.collect(torch.stack([there, there])), 2 * weight)


def test_a_choice_is_among_the_candidates_and_reads_back() -> None:
    for precision in ("bf16", "tf32", "ieee"):
        for channels, side, stride in ((64, 32, 1), (128, 16, 1), (256, 8, 1), (512, 4, 1), (512, 2, 1), (64, 16, 2)):
            layer = Layer(channels, channels, side, side, 3, stride, precision, stride == 1)
            for kind in ("forward", "back", "weight"):
                chosen = way(kind, layer)
                assert chosen in candidates(kind, layer), (kind, layer, chosen)
                assert Way.of(str(chosen)) == chosen
