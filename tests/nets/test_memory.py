"""Kernels read and write only their own tensors: every tensor, scratch memory too, lies between NaN ("in a sea").

The clients' parameters are one model expanded, as in an evaluation of the server's model (`models_of`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.fast import kernels_run_here, plain_path
from torso.learn.sgd import Sgd
from torso.nets import LinearHead, Network, Tensors, apply, build, learnable, skeleton
from torso.precision import computing

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")
pytestmark = pytest.mark.skipif(not kernels_run_here(), reason="no Triton with CUDA, nor TRITON_INTERPRET=1")
G = 3
SHORE = 4096  # NaN values on either side of a tensor


class Sea:
    """Memory that is NaN wherever nothing has been written."""

    def __init__(self) -> None:
        self.waters: list[tuple[Tensor, int]] = []
        self._empty = torch.empty

    def island(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        water = torch.full((size + 2 * SHORE,), torch.nan, dtype=dtype, device=DEVICE)
        self.waters.append((water, size))
        return water.as_strided(shape, strides, SHORE)

    def put(self, x: Tensor) -> Tensor:
        return self.island(tuple(x.shape), x.stride(), x.dtype).copy_(x)

    def expanded(self, x: Tensor) -> Tensor:
        return (self.put(x) if x.is_floating_point() else x.to(DEVICE)).expand(G, *x.shape)

    def empty(self, *shape: Any, **how: Any) -> Tensor:
        if torch.device(how.get("device") or "cpu").type != DEVICE.type:
            return self._empty(*shape, **how)
        like = self._empty(*shape, **(how | {"device": "meta"}))
        return self.island(tuple(like.shape), like.stride(), like.dtype)

    def empty_like(self, x: Tensor) -> Tensor:
        if x.device.type != DEVICE.type:
            return self._empty(x.shape, dtype=x.dtype)
        return self.island(tuple(x.shape), x.stride(), x.dtype)

    def is_calm(self) -> bool:
        """Whether nothing was written outside of the tensors."""
        return all(bool(w[:SHORE].isnan().all() and w[SHORE + size :].isnan().all()) for w, size in self.waters)


@pytest.fixture
def sea(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sea]:
    made = Sea()
    monkeypatch.setattr(torch, "empty", made.empty)
    monkeypatch.setattr(torch, "empty_like", made.empty_like)
    with computing("fp32"):
        yield made
    assert made.is_calm()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def maps(samples: int, channels: int, height: int, width: int) -> Tensor:
    return random(G * samples, height, width, channels).permute(0, 3, 1, 2)


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found.double() - wanted).norm() <= 3e-5 * wanted.norm().clamp(min=1e-3))


def test_the_sea_is_seen(sea: Sea) -> None:
    """A read outside of a tensor gives NaN; without that the tests below would test nothing."""
    x = torch.empty(2, 3, device=DEVICE)
    assert x.isnan().all()
    assert x.as_strided((12,), (1,), x.storage_offset()).isnan().all()
    x.zero_().as_strided((7,), (1,), x.storage_offset())[-1] = 1
    assert not sea.is_calm()
    sea.waters.clear()


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding", "size", "samples"),
    [
        (3, 64, 3, 1, 1, 6, 5),  # patches, then boxes
        (64, 64, 3, 1, 1, 6, 5),  # boxes
        (16, 48, 3, 1, 0, 5, 3),
        (32, 160, 1, 2, 0, 5, 3),  # gather
        (20, 24, 3, 1, 1, 5, 3),
        (1, 32, 5, 1, 0, 7, 3),
    ],
)
@pytest.mark.parametrize("with_bias", [True, False])
def test_convolution(
    sea: Sea, inputs: int, outputs: int, kernel: int, stride: int, padding: int, size: int, samples: int,
    with_bias: bool,
) -> None:  # fmt: skip
    from torso.nets.kernels.conv import convolution

    one = random(outputs, inputs, kernel, kernel, seed=1) / kernel
    bias = random(outputs, seed=2) if with_bias else None
    x = sea.put(maps(samples, inputs, size, size))
    wanted = F.conv2d(x.double(), one.double(), None if bias is None else bias.double(), stride, padding)
    weight = sea.expanded(one).detach().requires_grad_()
    stacked = None if bias is None else sea.expanded(bias)
    out, sums = convolution(x, weight, stacked, stride, padding, counted=bias is None)
    assert close(out, wanted)
    assert sums is None or bool(sums.isfinite().all())

    x = x.detach().requires_grad_(inputs >= 16)
    leaves = [weight, x] if x.requires_grad else [weight]
    out, _ = convolution(x, weight, stacked, stride, padding)
    slope = sea.put(random(*out.shape, seed=3))
    found = torch.autograd.grad(out, leaves, slope)
    wide = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    parts = zip(wide[0].chunk(G), wide[1], strict=True)
    exact = torch.cat([F.conv2d(a, w, None, stride, padding) for a, w in parts])
    grads = torch.autograd.grad(exact, [wide[1], wide[0]][: len(leaves)], slope.double())
    assert all(close(a, b) for a, b in zip(found, grads, strict=True))


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "spare", "size"),
    [
        *((24, 3, 1, 1, 0, 5), (24, 3, 2, 1, 0, 5), (16, 3, 2, 1, 0, 4), (24, 3, 2, 0, 1, 4)),
        *((24, 5, 1, 2, 0, 5), (24, 5, 2, 2, 0, 5), (24, 5, 2, 1, 1, 6), (16, 5, 2, 0, 0, 9)),
    ],
)
def test_depthwise(sea: Sea, channels: int, kernel: int, stride: int, padding: int, spare: int, size: int) -> None:
    from torso.nets.kernels.depthwise import depthwise

    x, one = sea.put(maps(3, channels, size, size)).requires_grad_(), random(channels, 1, kernel, kernel, seed=1)
    weight = sea.expanded(one).detach().requires_grad_()
    out = depthwise(x, weight, stride, padding, spare)
    wide = x.detach().double().requires_grad_()
    padded = F.pad(wide, (padding, padding + spare) * 2)
    exact = F.conv2d(padded, one.double(), None, stride, groups=channels)
    slope = sea.put(random(*out.shape, seed=3))
    found, (wanted,) = torch.autograd.grad(out, [x, weight], slope), torch.autograd.grad(exact, [wide], slope.double())
    assert close(out, exact)
    assert close(found[0], wanted)
    assert found[1].isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("channels", "size", "pool"), [(64, 6, 2), (24, 5, 2), (20, 5, 1), (96, 1, 1)])
def test_normalise(sea: Sea, channels: int, size: int, pool: int, masked: bool) -> None:
    """The values of padded samples do not count, whatever they are."""
    from torso.nets.kernels.norm import normalise

    real = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0]], device=DEVICE).float() if masked else None
    y = sea.put(maps(3, channels, size, size))
    if real is not None:
        y[real.flatten() == 0] = torch.nan
        real = sea.put(real)
    y.requires_grad_()
    weight, bias = (sea.expanded(random(channels, seed=s)).detach().requires_grad_() for s in (1, 2))
    out, mean, var = normalise(y, weight, bias, None, real, None, 1e-5, True, pool)
    slope = sea.put(random(*out.shape, seed=3))
    grads = torch.autograd.grad(out, [y, weight, bias], slope)
    assert all(bool(t.isfinite().all()) for t in (out, mean, var, *grads))
    for g in range(G):
        kept = slice(3 * g, 3 * g + (3 if real is None else int(real[g].sum())))
        exact = F.batch_norm(y.detach()[kept].double(), None, None, weight[g].double(), bias[g].double(), training=True)
        assert close(out.detach()[kept], F.relu(F.max_pool2d(exact, pool)).detach())


@pytest.mark.parametrize("cap", [0, 6])
@pytest.mark.parametrize("pool", [1, 2])
def test_nan_stays(sea: Sea, pool: int, cap: float) -> None:
    """In the maximum of the pool and of ReLU. The interpreter's maximum keeps NaN anyway, a GPU's own does not."""
    from torso.nets.kernels.norm import normalise

    y = maps(2, 16, 4, 4)
    y[0, 3] = torch.nan
    ones = torch.ones(G, 16, device=DEVICE)
    out, _, _ = normalise(y, ones, 0 * ones, None, None, None, 1e-5, True, pool, cap)
    assert out[:2, 3].isnan().all()
    assert out.isnan().sum() == out[:2, 3].numel()


@pytest.mark.parametrize("active", [None, [True, False, True]])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_step_of_sgd(sea: Sea, active: list[bool] | None, momentum: float) -> None:
    shapes = {"weight": (G, 7, 150), "bias": (G, 5)}
    params = {n: sea.put(random(*s)) for n, s in shapes.items()}
    grads = {n: sea.put(random(*s, seed=1)) for n, s in shapes.items()}
    wanted = {n: p.clone() for n, p in params.items()}
    who = None if active is None else torch.tensor(active, device=DEVICE)
    sgd, plain = Sgd(momentum, 0.01), Sgd(momentum, 0.01)
    for _ in range(2):
        sgd.step(params, grads, {"weight": 0.1}, who)
        with plain_path():
            plain.step(wanted, grads, {"weight": 0.1}, who)
    for name, tensor in wanted.items():
        torch.testing.assert_close(params[name], tensor)


def _network(body: str, size: int) -> tuple[Network, Tensors]:
    """A network with a bias and running statistics that change the result."""
    net = build(body, 4, (3, size, size), LinearHead(), seed=1, norm="running" if body == "conv4" else "default")
    state = {n: t.detach().to(DEVICE) for n, t in net.state_dict().items()}
    for place, (name, tensor) in enumerate(state.items()):
        if tensor.is_floating_point() and tensor.ndim == 1:
            noise = 0.1 * random(*tensor.shape, seed=place)
            state[name] = tensor + (noise.abs() if "var" in name else noise)
    return skeleton(net), state


BODIES = {"conv4": 16, "rod-mnist": 16, "resnet8": 8}  # BatchNorm and a bias, a bias alone, BatchNorm alone


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_one_model_for_all_in_evaluation(sea: Sea, body: str, masked: bool) -> None:
    size, samples = BODIES[body], 2
    net, state = _network(body, size)
    x = sea.put(random(G, samples, size, size, 3).movedim(-1, 2))
    real = torch.tensor([[1, 1], [1, 1], [1, 0]], device=DEVICE).float() if masked else None
    tensors = {n: sea.expanded(t) for n, t in state.items()}
    with torch.no_grad():
        said = apply(net.eval(), tensors, x, real)
        with plain_path():
            wanted = apply(net, {n: t.clone() for n, t in tensors.items()}, x, real)
    kept = slice(None) if real is None else real > 0
    torch.testing.assert_close(said.features[kept], wanted.features[kept], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(said.logits[kept], wanted.logits[kept], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("body", ["conv4", "rod-mnist"])
def test_a_step_of_training(sea: Sea, body: str, masked: bool) -> None:
    size, samples = BODIES[body], 2
    net, state = _network(body, size)
    x = sea.put(random(G, samples, size, size, 3).movedim(-1, 2))
    real = torch.tensor([[1, 1], [1, 1], [1, 0]], device=DEVICE).float() if masked else None
    tensors = {n: t.expand(G, *t.shape).clone() for n, t in state.items()}
    tensors = {n: sea.put(t) if t.is_floating_point() else t for n, t in tensors.items()}
    leaves = [tensors[n].requires_grad_() for n in learnable(net, tensors)]
    said = apply(net.train(), tensors, x, real)
    grads = torch.autograd.grad(said.logits.square().sum(), leaves)
    assert said.logits.isfinite().all()
    assert all(bool(t.isfinite().all()) for t in (*grads, *tensors.values()))
