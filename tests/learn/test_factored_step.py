"""Steps by the factors of gradients are steps by the gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.fast import kernels_run_here
from torso.learn import factored_step
from torso.learn.sgd import Sgd
from torso.learn.steps import Learner, LocalSettings
from torso.nets import LinearHead, build, layers, learnable, set_modes, skeleton
from torso.nets.stacked_linear import Casts, left_as_factors, stacked_linear

PLACES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factored_step, "LARGE", 1)
    monkeypatch.setattr(layers, "is_fast", lambda x: x.ndim == 3 or x.is_cuda)


def learner(place: str, decay: float) -> Learner:
    whole = build("mlp", 4, (3, 8, 8), LinearHead(), seed=0)
    tensors = {n: t.to(place).expand(3, *t.shape).clone() for n, t in whole.state_dict().items()}
    net = skeleton(whole)
    set_modes(net, frozenset(tensors))
    names = learnable(net, tensors)
    rates = {n: torch.tensor(0.1, device=place) for n in names}
    counts = torch.ones(3, 4, device=place)
    return Learner(net, LocalSettings(5), counts, tensors, tuple(names), rates, Sgd(0.0, decay), None)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("all_large")
def test_steps(place: str, masked: bool, decay: float, kind: torch.dtype) -> None:
    """Three steps of three clients of five samples; masked: one has three, and one none, so that it stays. In 16 bits
    the casts of the first step go on with the weights."""
    draw = torch.Generator().manual_seed(0)
    inputs, labels = (
        torch.randn(3, 5, 3, 8, 8, generator=draw).to(place, kind),
        torch.arange(15, device=place).view(3, 5) % 4,
    )
    filled = torch.tensor([5, 3, 0], device=place)
    real = (torch.arange(5, device=place) < filled.unsqueeze(1)).float() if masked else None
    batch = Batch(inputs, labels, real, filled > 0 if masked else None)
    one, other = learner(place, decay), learner(place, decay)
    start = {n: t.clone() for n, t in one.tensors.items()}
    assert any(t.ndim == 3 for t in start.values())
    casts: Casts = {}
    near = {"rtol": 1e-5, "atol": 1e-6} if kind == torch.float32 else {"rtol": 2e-2, "atol": 2e-3}
    for _ in range(3):
        total = factored_step.factored_step(one, batch, casts)
        grads, wanted = other.at(other.tensors, batch)
        other.move(grads, batch)
        torch.testing.assert_close(total, wanted, **near)
    assert bool(casts) is (kind == torch.bfloat16)
    by_address = {t.data_ptr(): t for t in one.tensors.values()}
    assert all(torch.equal(cast, by_address[at].to(kind)) for at, cast in casts.items())
    for name, tensor in other.tensors.items():
        torch.testing.assert_close(one.tensors[name], tensor, **near, msg=name)
        assert not torch.equal(tensor[0], start[name][0])
        assert torch.equal(one.tensors[name][2], start[name][2]) is masked


@pytest.mark.parametrize("uses", [1, 2])
def test_factors_of_each_use_of_a_weight(uses: int) -> None:
    x, weight = torch.randn(2, 3, 4), torch.randn(2, 4, 4, requires_grad=True)

    def used() -> Tensor:
        out = x
        for _ in range(uses):
            out = stacked_linear(out, weight, None)
        return out.square().sum()

    (wanted,) = torch.autograd.grad(used(), weight)
    with left_as_factors([weight]) as found:
        (rest,) = torch.autograd.grad(used(), weight)
    assert not rest.any()
    factors = found[weight.data_ptr()]
    assert len(factors) == uses
    products = [each.product(torch.float32) for each in factors]
    torch.testing.assert_close(torch.stack(products).sum(dim=0), wanted)


@pytest.mark.skipif(not kernels_run_here(), reason="no Triton with CUDA, nor TRITON_INTERPRET=1")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(10, 128, 320), (17, 70, 130), (1, 3, 5)])
@pytest.mark.parametrize("all_active", [True, False])
def test_the_kernel(kind: torch.dtype, shape: tuple[int, int, int], all_active: bool) -> None:
    from torso.learn.sgd_kernel import step_by_product

    place = "cuda" if torch.cuda.is_available() else "cpu"
    samples, lines, size = shape
    draw = torch.Generator().manual_seed(0)
    slope, x, weight = (
        torch.randn(3, *sizes, generator=draw).to(place) for sizes in ((samples, lines), (samples, size), (lines, size))
    )
    slope, x = slope.to(kind), x.to(kind)
    active = None if all_active else torch.tensor([True, False, True], device=place)
    rate = torch.tensor([0.1, 0.2, 0.3], device=place)
    move = slope.double().transpose(1, 2) @ x.double() + 0.5 * weight.double()
    goes = rate if active is None else rate * active
    wanted = weight.double() - goes.view(3, 1, 1) * move
    cast = weight.bfloat16()
    step_by_product(weight, slope, x, active, rate, 0.5, cast)
    assert torch.equal(cast, weight.bfloat16())
    torch.testing.assert_close(weight.double(), wanted, rtol=1e-4, atol=1e-5)
