"""Stacked SGD against torch.optim.SGD, and clients that sit a step out."""

from __future__ import annotations

import os

import pytest
import torch

from torso.fast import kernels_run_here, plain_path
from torso.learn.drift import DriftState, Proximal
from torso.learn.sgd import Sgd
from torso.learn.stacked import Rate


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_stacked_steps_are_torchs_steps_for_each_client(momentum: float, decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    stacked = {"a": torch.randn(2, 3, generator=generator), "b": torch.randn(2, 1, 2, generator=generator)}
    rates = {"a": 0.1, "b": 0.03}
    alone = [{n: t[g].clone().requires_grad_() for n, t in stacked.items()} for g in range(2)]
    groups = [[{"params": [p], "lr": rates[n]} for n, p in mine.items()] for mine in alone]
    optimisers = [torch.optim.SGD(group, momentum=momentum, weight_decay=decay) for group in groups]
    sgd = Sgd(momentum, decay)
    for _ in range(4):
        grads = {n: torch.randn(t.shape, generator=generator) for n, t in stacked.items()}
        sgd.step(stacked, grads, rates)
        for g, optimiser in enumerate(optimisers):
            for n, p in alone[g].items():
                p.grad = grads[n][g].clone()
            optimiser.step()
    for g in range(2):
        for n in stacked:
            assert torch.equal(stacked[n][g], alone[g][n].detach())


def test_a_client_without_samples_keeps_weights_and_velocity() -> None:
    """Two steps by hand, μ = ½, lr = 1, wd = 1: client 1 sits the first out, so its second step is a first one."""
    params = {"w": torch.tensor([[1.0], [1.0]])}
    sgd = Sgd(momentum=0.5, weight_decay=1.0)
    grads = {"w": torch.tensor([[1.0], [1.0]])}
    sgd.step(params, grads, {"w": 1.0}, active=torch.tensor([True, False]))
    assert params["w"].flatten().tolist() == [-1.0, 1.0]  # 1 − (1 + 1)
    sgd.step(params, grads, {"w": 1.0}, active=torch.tensor([True, True]))
    assert params["w"].flatten().tolist() == [-2.0, -1.0]  # −1 − (½·2 + 1 − 1); 1 − (1 + 1)


def test_clients_that_lead_step_and_the_others_keep_weights_and_velocity() -> None:
    """As above, with gradients of the first client alone; client 1 has a velocity all the same when its turn comes."""
    params = {"w": torch.tensor([[1.0], [1.0]])}
    sgd = Sgd(momentum=0.5, weight_decay=1.0)
    sgd.step(params, {"w": torch.tensor([[1.0]])}, {"w": 1.0}, active=torch.tensor([True, False]), lead=1)
    assert params["w"].flatten().tolist() == [-1.0, 1.0]
    sgd.step(params, {"w": torch.tensor([[1.0], [1.0]])}, {"w": 1.0})
    assert params["w"].flatten().tolist() == [-2.0, -1.0]


@pytest.mark.parametrize("lead", [None, 2])
def test_each_client_has_its_own_rate(lead: int | None) -> None:
    """w − lr_k·(g + w): 1 − ½·2, 1 − 2·2, and a client that does not lead stays."""
    params = {"w": torch.ones(3, 1)}
    rates = {"w": torch.tensor([0.5, 2.0, 1.0])}
    active = None if lead is None else torch.tensor([True, True, False])
    Sgd(momentum=0.5, weight_decay=1.0).step(params, {"w": torch.ones(lead or 3, 1)}, rates, active, lead)
    assert params["w"].flatten().tolist() == [0.0, -3.0, -1.0 if lead is None else 1.0]


def test_a_tensor_without_a_rate_gathers_speed_and_stays() -> None:
    params = {"w": torch.zeros(1, 1), "frozen": torch.zeros(1, 1)}
    sgd = Sgd(momentum=0.5, weight_decay=0.0)
    sgd.step(params, {n: torch.ones(1, 1) for n in params}, {"w": 1.0})
    assert params["w"].item() == -1.0
    assert params["frozen"].item() == 0.0
    assert sgd.velocity["frozen"].item() == 1.0


def test_proximal_gradient_by_hand() -> None:
    """g + μ(θ − θ_G) = 1 + 0.5·(3 − 1) = 2 and −1 + 0.5·(0 − 1) = −1.5."""
    at = DriftState(start={"w": torch.tensor([1.0])}, params={"w": torch.tensor([[3.0], [0.0]])})
    grads = Proximal(0.5).gradient({"w": torch.tensor([[1.0], [-1.0]])}, at)
    assert grads["w"].flatten().tolist() == [2.0, -1.5]


@pytest.mark.skipif(not kernels_run_here(), reason="no Triton with CUDA, nor TRITON_INTERPRET=1")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("all_active", [True, False])
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1), torch.tensor([0.1, 0.2, 0.3])], ids=str)
@pytest.mark.parametrize("large", [True, False])
def test_the_fused_step_is_the_plain_step(
    momentum: float, all_active: bool, rate: Rate, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor a has a velocity but no rate, as in a phase of FedRep with one optimiser. A rate is on the host, on the
    device, or each client's own; large tensors have a launch of their own."""
    from torso.learn import sgd_kernel

    monkeypatch.setattr(sgd_kernel, "LARGE", 2000 if large else 1 << 23)
    device = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
    active = None if all_active else torch.tensor([True, False, True], device=device)
    rates: dict[str, Rate] = {"b": rate.to(device) if isinstance(rate, torch.Tensor) else rate, "c": 0.2}
    start = {n: torch.randn(3, size).to(device) for n, size in (("a", 5), ("b", 2000), ("c", 7))}
    ends, optimisers = [{n: t.clone() for n, t in start.items()} for _ in range(2)], [Sgd(momentum, 0.01) for _ in "ab"]
    for _ in range(3):
        grads = {n: torch.randn_like(t) for n, t in start.items()}
        optimisers[0].step(ends[0], {n: g.clone() for n, g in grads.items()}, rates, active)
        with plain_path():
            optimisers[1].step(ends[1], grads, rates, active)
    for fused, plain in (ends, [optimiser.velocity for optimiser in optimisers]):
        assert fused.keys() == plain.keys()
        for name in plain:
            torch.testing.assert_close(fused[name], plain[name], rtol=1e-5, atol=1e-6)
