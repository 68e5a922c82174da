"""Fused kernels against the plain path in float64: on CUDA, or anywhere under TRITON_INTERPRET=1."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.fast import is_fast, kernels_run_here, plain_path
from torso.nets import LinearHead, Network, Tensors, apply, build, learnable, skeleton
from torso.nets.blocks import Unit

from .samples import spread

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")
needs_kernels = pytest.mark.skipif(not kernels_run_here(), reason="no Triton with CUDA, nor TRITON_INTERPRET=1")
G, B = 3, 4
TYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
# relative to the largest value; bfloat16 has 8 bits of mantissa
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def maps(channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    return random(G * B, channels, height, width, seed=seed).contiguous(memory_format=torch.channels_last)


def compare(
    fast: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype, rtol: float
) -> None:
    """Outputs and gradients; the first input has the dtype, the others are parameters in float32."""
    inputs = [inputs[0].to(dtype), *inputs[1:]]
    wide = [x.double().requires_grad_() for x in inputs]
    near = [x.detach().clone().requires_grad_() for x in inputs]
    out, wanted = fast(*near), plain(*wide)
    assert out.dtype == dtype
    slope = random(*wanted.shape, seed=9).to(dtype)
    grads, wanted_grads = torch.autograd.grad(out, near, slope), torch.autograd.grad(wanted, wide, slope.double())
    for found, expected in zip((out, *grads), (wanted, *wanted_grads), strict=True):
        assert found.shape == expected.shape
        error = (found.double() - expected).norm() / expected.norm().clamp(min=1e-6)
        assert error < rtol, float(error)


def each(x: Tensor, *stacks: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(x.unflatten(0, (G, B)), *stacks, strict=True))


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding", "height", "width"),
    [
        (3, 64, 3, 1, 1, 8, 8),
        (64, 64, 3, 1, 1, 6, 6),
        (32, 48, 3, 2, 1, 7, 5),
        (1, 32, 5, 1, 0, 8, 9),
        (16, 160, 3, 1, 1, 4, 4),
        (32, 64, 1, 2, 0, 6, 6),
        (20, 24, 3, 1, 0, 5, 5),
    ],
)
def test_convolution(
    inputs: int, outputs: int, kernel: int, stride: int, padding: int, height: int, width: int, dtype: torch.dtype
) -> None:
    from torso.nets.kernels.conv import convolution

    weight, bias = random(G, outputs, inputs, kernel, kernel, seed=1) / kernel, random(G, outputs, seed=2)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat([F.conv2d(one, w, b, stride, padding) for one, w, b in each(x, weight, bias)])

    def fast(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return convolution(x, weight, bias, stride, padding)[0]

    compare(fast, plain, [maps(inputs, height, width), weight, bias], dtype, CLOSE[dtype])


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
def test_pointwise(dtype: torch.dtype) -> None:
    from torso.nets.kernels.conv import pointwise

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return torch.cat([F.conv2d(one, w[..., None, None]) for one, w in each(x, weight)])

    compare(pointwise, plain, [maps(16, 4, 5), random(G, 24, 16, seed=1)], dtype, CLOSE[dtype])


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("inputs", "height", "width", "padding", "spare"), [(3, 8, 8, 0, 1), (16, 6, 8, 0, 1), (3, 7, 5, 1, 0)]
)
def test_convolution_with_more_zeros_at_the_end(
    inputs: int, height: int, width: int, padding: int, spare: int, dtype: torch.dtype
) -> None:
    """TensorFlow's padding for stride 2: of images, for which patches are made, and of maps."""
    from torso.nets.kernels.conv import convolution

    weight, x = random(G, 32, inputs, 3, 3, seed=1) / 3, maps(inputs, height, width).to(dtype)
    around = (padding, padding + spare) * 2

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return torch.cat([F.conv2d(F.pad(one, around), w, None, 2) for one, w in each(x, weight)])

    def fast(x: Tensor, weight: Tensor) -> Tensor:
        return convolution(x, weight, None, 2, padding, spare=spare)[0]

    compare(fast, plain, [x, weight], dtype, CLOSE[dtype])
    wanted = plain(x.double(), weight.double())
    assert (fast(x, weight).double() - wanted).norm() / wanted.norm() < CLOSE[dtype]  # an image needs no gradient


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "spare", "height", "width"),
    [
        *((32, 3, 1, 1, 0, 6, 6), (32, 3, 2, 1, 0, 8, 8), (96, 3, 2, 1, 0, 5, 7), (16, 3, 1, 1, 0, 1, 1)),
        *((48, 3, 2, 0, 1, 8, 6), (16, 3, 2, 0, 1, 2, 2), (16, 3, 2, 0, 0, 7, 9)),  # TensorFlow's; padded before
        *((32, 5, 1, 2, 0, 6, 5), (16, 5, 1, 2, 0, 2, 2), (48, 5, 2, 2, 0, 7, 5), (16, 5, 2, 2, 0, 1, 3)),
        *((96, 5, 2, 1, 1, 8, 6), (16, 5, 2, 1, 1, 2, 2), (16, 5, 2, 0, 0, 9, 11)),
    ],
)
def test_depthwise(
    channels: int, kernel: int, stride: int, padding: int, spare: int, height: int, width: int, dtype: torch.dtype
) -> None:
    from torso.nets.kernels.depthwise import depthwise

    around = (padding, padding + spare) * 2

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        each_map = [(F.pad(one, around), w) for one, w in each(x, weight)]
        return torch.cat([F.conv2d(one, w, None, stride, groups=channels) for one, w in each_map])

    def fast(x: Tensor, weight: Tensor) -> Tensor:
        return depthwise(x, weight, stride, padding, spare)

    weight = random(G, channels, 1, kernel, kernel, seed=1)
    compare(fast, plain, [maps(channels, height, width), weight], dtype, CLOSE[dtype])


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("relu", "pool", "cap"), [(False, 1, 0), (True, 1, 0), (True, 2, 0), (False, 2, 0), (True, 1, 0.5), (True, 2, 0.5)]
)
@pytest.mark.parametrize(("channels", "height", "width"), [(64, 8, 8), (24, 7, 5), (96, 2, 2)])
def test_normalise(
    channels: int, height: int, width: int, relu: bool, pool: int, cap: float, masked: bool, dtype: torch.dtype
) -> None:
    from torso.nets.kernels.norm import normalise

    real = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]], device=DEVICE).float() if masked else None
    y = maps(channels, height, width) + 5 * random(1, channels, 1, 1, seed=5)
    weight, bias = random(G, channels, seed=1), random(G, channels, seed=2)

    def plain(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outs = []
        for g, (one, w, b) in enumerate(each(y, weight, bias)):
            rows = slice(None) if real is None else real[g] > 0
            out = b.detach().view(1, -1, 1, 1).repeat(B, 1, height, width)
            if real is None or bool(real[g].any()):
                out[rows] = F.batch_norm(one[rows], None, None, w, b, training=True)
            out = F.max_pool2d(out, pool) if pool > 1 else out
            outs.append(F.hardtanh(out, 0, cap or torch.inf) if relu else out)
        return torch.cat(outs)

    def fast(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, _, _ = normalise(y, weight, bias, None, real, None, 1e-5, relu, pool, cap)
        return out

    def without_padding(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def kept(*inputs: Tensor) -> Tensor:
            out = compute(*inputs)
            return out if real is None else out * real.view(-1, 1, 1, 1).to(out.dtype)

        return kept

    compare(without_padding(fast), without_padding(plain), [y, weight, bias], dtype, 2 * CLOSE[dtype])


@needs_kernels
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("inputs", "outputs", "height", "width"), [(16, 48, 7, 5), (3, 64, 8, 8), (32, 160, 2, 2)])
def test_statistics_on_the_way(
    inputs: int, outputs: int, height: int, width: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The convolution's own statistics are those of its output; many parts or few."""
    from torso.nets.kernels import norm
    from torso.nets.kernels.conv import convolution

    real = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1]], device=DEVICE).float() if masked else None
    weight = random(G, outputs, inputs, 3, 3, seed=1)
    out, sums = convolution(maps(inputs, height, width) + 3, weight, None, 1, 1, counted=True, real=real)
    assert sums is not None
    ones, zeros = torch.ones(G, outputs, device=DEVICE), torch.zeros(G, outputs, device=DEVICE)
    wanted = norm.normalise(out, ones, zeros, None, real)
    monkeypatch.setattr(norm, "_FEW", 1)
    for found in (norm.normalise(out, ones, zeros, None, real, sums), norm.normalise(out, ones, zeros, None, real)):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_a_large_mean_loses_no_digits() -> None:
    from torso.nets.kernels.norm import normalise

    y = maps(32, 8, 8) + 1000
    weight, bias = torch.ones(G, 32, device=DEVICE), torch.zeros(G, 32, device=DEVICE)
    _, mean, var = normalise(y, weight, bias)
    wanted = y.double().unflatten(0, (G, B))
    torch.testing.assert_close(mean.double(), wanted.mean((1, 3, 4)), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), wanted.var((1, 3, 4), correction=0), rtol=1e-4, atol=0)


@needs_kernels
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("body", ["conv3", "efficientnet-lite0", "mobilenet", "resnet8", "rod-cifar"])
def test_a_network_is_the_same_on_both_paths(body: str, masked: bool) -> None:
    """Logits, gradients and buffers of a step, compared with float64 on the plain path.

    Rounding switches some ReLUs on or off, so the tolerance is measured: the error that the plain path makes if its
    images are changed by rounding."""
    size = {"efficientnet-lite0": 40, "mobilenet": 32, "rod-cifar": 20}.get(body, 16)
    net = build(body, 3, (3, size, size), LinearHead(), seed=1)
    tensors = spread(net, G)
    x, wanted = random(G, B, size, size, 3).movedim(-1, 2).cpu(), random(G, B, 3, seed=1).cpu()
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]).float() if masked else None

    def step(net: Network, dtype: torch.dtype, device: torch.device, x: Tensor = x) -> list[Tensor]:
        names = learnable(net, tensors)
        leaves = {n: t.to(device, dtype if t.is_floating_point() else None, copy=True) for n, t in tensors.items()}
        for n in names:
            leaves[n].requires_grad_()
        mask = None if real is None else real.to(device, dtype)
        said = apply(skeleton(net).train(), leaves, x.to(device, dtype), mask)
        losses = said.logits * wanted.to(device, dtype) * (1 if mask is None else mask[..., None])
        grads = torch.autograd.grad(losses.sum(), [leaves[n] for n in names])
        return [said.logits.detach(), *grads, *(t for n, t in leaves.items() if n not in names)]

    def errors(found: list[Tensor]) -> Tensor:
        pairs = zip(found, exact, strict=True)
        return torch.stack(
            [(t.cpu().double() - e.double()).norm() / e.double().norm().clamp(min=1e-3) for t, e in pairs]
        )

    exact = step(net.double(), torch.float64, torch.device("cpu"))
    net.float()
    with plain_path():
        turned = [x * (1 + 1e-6 * random(*x.shape, seed=seed).cpu()) for seed in range(3)]
        usual = torch.stack([errors(step(net, torch.float32, DEVICE, x)) for x in turned]).amax()
    assert errors(step(net, torch.float32, DEVICE)).amax() < max(1e-4, 3 * float(usual))


@needs_kernels
@pytest.mark.parametrize("learning", ["nothing", "head", "body"])
@pytest.mark.parametrize("body", ["conv3", "efficientnet-lite0", "resnet8"])
def test_running_statistics_give_the_same_on_both_paths(body: str, learning: str) -> None:
    """If the body is frozen, a convolution's bias, BatchNorm, the pool, ReLU and ReLU6 are one pass. If it learns, it
    gets its gradients. The running statistics stay."""
    size = 40 if body == "efficientnet-lite0" else 16
    net = build(body, 3, (3, size, size), LinearHead(), norm="running", seed=1)
    tensors, x = spread(net, G), random(G, B, size, size, 3).movedim(-1, 2)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], device=DEVICE).float()
    names = [n for n in learnable(net, tensors) if n.startswith(learning)]

    def step(device: torch.device, dtype: torch.dtype) -> tuple[Tensors, list[Tensor]]:
        here = {n: t.to(device, dtype if t.is_floating_point() else None, copy=True) for n, t in tensors.items()}
        leaves = [here[n].requires_grad_() for n in names]
        logits = apply(skeleton(net).eval(), here, x.to(device, dtype), real.to(device, dtype)).logits
        return here, [logits.detach(), *(torch.autograd.grad(logits.square().sum(), leaves) if leaves else ())]

    here, found = step(DEVICE, torch.float32)
    wanted = step(torch.device("cpu"), torch.float64)[1]
    off = [(a.cpu().double() - b).norm() / b.norm().clamp(min=1e-3) for a, b in zip(found, wanted, strict=True)]
    assert off[0] < 1e-4
    assert max(off) < 1e-2  # rounding may switch a ReLU
    assert all(torch.equal(t.detach().cpu(), tensors[n]) for n, t in here.items())


def test_a_plain_path_can_be_forced_and_cpu_is_always_plain() -> None:
    if not INTERPRETED:
        assert not is_fast(torch.zeros(1))
    assert not is_fast(torch.zeros(1, dtype=torch.float64))
    unit = Unit(3, 4, 3, norm="batch")
    with plain_path():
        x = torch.randn(2, 3, 4, 4).to(DEVICE)
        assert not is_fast(x)
        first = torch.autograd.grad(unit.to(DEVICE)(x).square().sum(), list(unit.parameters()), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), unit.norm.weight)  # type: ignore[union-attr]
    assert second[0].isfinite().all()
