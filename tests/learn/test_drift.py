"""Drift corrections on quadratics worked out by hand, and their invariants over rounds (spec 18, point 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.methods import tiny
from torch.testing import assert_close

from torso import Config, run
from torso.learn.drift import Drift, DriftState, Dynamic, Scaffold, clip_norm

PACE = {"w": torch.tensor([0.2, 0.2])}  # two steps of 0.1


def two_quadratics(drift: Drift, at: DriftState) -> DriftState:
    """Two steps of 0.1 from w = 0 on f0 = (w − 1)²/2 and f1 = 3(w + 1)²/2."""
    at = replace(at, params={"w": torch.zeros(2, 1)})
    for _ in range(2):
        w = at.params["w"]
        grads = {"w": torch.stack([w[0] - 1, 3 * (w[1] + 1)])}
        at = replace(at, params={"w": w - 0.1 * drift.gradient(grads, at)["w"]})
    return at


def test_scaffold_variate_is_the_mean_gradient_met() -> None:
    """Variates start non-zero (zeros would hide a wrong sign): corrections −c_k + c = −2 − 1 = −3 and 4 − 1 = 3.

    Client 0: gradients −1, −0.6 → steps of 0.1·4, 0.1·3.6, w = 0.76; c₀ = 2 + 1 + (0 − 0.76)/0.2 = −0.8.
    Client 1: gradients 3, 1.2 → steps of 0.1·6, 0.1·4.2, w = −1.02; c₁ = −4 + 1 + 1.02/0.2 = 2.1."""
    anchor = DriftState({"w": torch.zeros(1)}, {}, {"w": torch.tensor([[2.0], [-4.0]])}, {"w": torch.tensor([-1.0])})
    at = two_quadratics(Scaffold(), anchor)
    assert_close(at.params["w"], torch.tensor([[0.76], [-1.02]]))
    assert_close(Scaffold().finish(at, PACE)["w"], torch.tensor([[-0.8], [2.1]]))


def test_scaffold_counts_the_steps_that_momentum_adds() -> None:
    """Spec 3.7: K = 100, ρ = 0.9 → 910.0. And by definition: unit gradients, v ← ρv + 1, w ← w − v, K times."""
    assert Scaffold("momentum").effective(100, 0.9) == pytest.approx(910.0, abs=0.05)
    assert Scaffold("steps").effective(100, 0.9) == 100
    velocity = moved = 0.0
    for _ in range(7):
        velocity = 0.5 * velocity + 1
        moved += velocity
    assert Scaffold("momentum").effective(7, 0.5) == pytest.approx(moved)


def test_scaffold_client_without_a_step_keeps_its_variate() -> None:
    at = DriftState(
        {"w": torch.zeros(1)}, {"w": torch.zeros(1, 1)}, {"w": torch.tensor([[2.0]])}, {"w": torch.tensor([-1.0])}
    )
    assert Scaffold().finish(at, {"w": torch.zeros(1)})["w"].item() == 2.0


def test_dynamic_gradient_and_multiplier_by_hand() -> None:
    """α = ½, λ = (1, −1). Client 0: g = −1 − 1 + 0 = −2, w = 0.2; g = −0.8 − 1 + 0.1 = −1.7, w = 0.37;
    λ₀ = 1 − ½·0.37. Client 1: g = 3 + 1 = 4, w = −0.4; g = 1.8 + 1 − 0.2 = 2.6, w = −0.66; λ₁ = −1 + ½·0.66."""
    drift = Dynamic(alpha=0.5, clip=0.0)
    anchor = DriftState({"w": torch.zeros(1)}, {}, {"w": torch.tensor([[1.0], [-1.0]])}, {"w": torch.zeros(1)})
    at = two_quadratics(drift, anchor)
    assert_close(at.params["w"], torch.tensor([[0.37], [-0.66]]))
    assert_close(drift.finish(at, PACE)["w"], torch.tensor([[1 - 0.185], [-1 + 0.33]]))


def test_dynamic_server_subtracts_h_over_alpha() -> None:
    settled = Dynamic(alpha=0.5).settle({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.25])})
    assert settled["w"].item() == 0.5


def test_clip_is_torchs_per_client_over_all_tensors() -> None:
    grads = {"a": torch.tensor([[3.0], [0.3]]), "b": torch.tensor([[[4.0]], [[0.4]]])}
    clipped = clip_norm(grads, 1.0)
    parameters = [torch.zeros(1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)]
    for p, g in zip(parameters, grads.values(), strict=True):
        p.grad = g[0].clone()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    assert_close(clipped["a"][0], parameters[0].grad)
    assert_close(clipped["b"][0], parameters[1].grad)
    assert_close(clipped["a"][1], grads["a"][1])  # below the limit: as it was


@pytest.mark.parametrize("method", ["scaffold", "scaffold-babu", "feddyn", "feddyn-babu"])
@pytest.mark.parametrize(("workers", "newcomers"), [(1, 0), (2, 3)])
def test_the_server_keeps_the_mean_over_all_clients(method: str, workers: int, newcomers: int) -> None:
    """c = (1/N) Σ c_k and h = (1/N) Σ λ_k over all N clients that train, whatever the participation."""
    result = run(
        Config(
            method=method,
            data={
                "source": "synthetic",
                "clients": 10 + newcomers,
                "new_clients": newcomers,
                "balance": True,
                "synthetic": {"samples": 300, "test_samples": 40},
            },
            train={"rounds": 5, "fraction": 0.3, "batch_size": 10, "momentum": 0.0},
            measure={"names": ["generic"]},
            run={"workers": workers},
        )
    )
    state = result.state
    assert state is not None
    assert 3 < len(state.clients.of_kind("memory")) < 10
    for name, mean in state.server.drift.items():
        total = torch.stack([own[name] for own in state.clients.of_kind("memory").values()]).sum(dim=0)
        assert_close(mean, total / 10, rtol=1e-4, atol=1e-6)
    head = {name for name in state.server.drift if name.startswith("head.")}
    assert bool(head) == ("babu" not in method)  # +BABU: every piece of state is restricted to the body (3.11)


def test_scaffold_round_by_hand() -> None:
    """One step each of rate 1 from W = 0: c_k = gradient met, so W_k = −c_k; c = (c₀ + c₁)/2 (uniform over N)."""
    state = tiny.play(tiny.job("scaffold"))
    first, second = (state.clients[k].memory["head.weight"] for k in (0, 1))
    assert_close(first, torch.tensor([[-0.5, 0.0], [0.5, 0.0]]))
    assert_close(second, torch.tensor([[0.0, 0.5], [0.0, -0.5]]))
    assert_close(state.server.drift["head.weight"], (first + second) / 2)
    assert_close(tiny.head(state), -(0.25 * first + 0.75 * second))


def test_feddyn_round_by_hand() -> None:
    """One step of rate 1: λ_k = −α W_k; h = −(α/2)(W₀ + W₁); broadcast mean + ½(W₀ + W₁), reported the mean."""
    w0, w1 = torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), torch.tensor([[0.0, -0.5], [0.0, 0.5]])
    state = tiny.play(tiny.job("feddyn"))
    mean = 0.25 * w0 + 0.75 * w1
    assert_close(state.clients[0].memory["head.weight"], -0.01 * w0)
    assert_close(tiny.head(state), mean + 0.5 * (w0 + w1))
    assert_close(state.server.shown["head.weight"], mean)
    assert not tiny.play(tiny.job({"name": "feddyn", "drift": {"report": "cloud"}})).server.shown


def test_feddyn_with_a_large_alpha_stays_where_it_was() -> None:
    state = tiny.play(tiny.job({"name": "feddyn", "drift": {"alpha": 1e4}}, lr=1e-4, local_epochs=50))
    assert float(state.server.shown["head.weight"].abs().max()) < 1e-3


@pytest.mark.parametrize(("method", "factor"), [("scaffold", 2), ("feddyn", 1), ("fedexp", 1), ("fedadam", 1)])
def test_bytes(method: str, factor: int) -> None:
    cost = tiny.play(tiny.job(method)).cost
    parameters = 2 + 4
    assert cost.bytes_up == cost.bytes_down == 2 * factor * 4 * parameters
