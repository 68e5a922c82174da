"""Server rules by hand and against torch.optim; the limits of spec 18, point 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from torso.nets import Tensors
from torso.server.rules import Adaptive, FedExp, Mean, Momentum, RuleStep, ServerRule, TorchAdam

NONE = torch.zeros(())


def twice(rule: ServerRule, deltas: tuple[float, float] = (1.0, 3.0)) -> list[float]:
    """θ after each of two rounds from θ = 0, when the mean lies `deltas` away from θ."""
    state: Tensors = {}
    shared = {"w": torch.zeros(1)}
    path = []
    for delta in deltas:
        moved: RuleStep = rule.step(state, shared, {"w": shared["w"] + delta}, NONE)
        state, shared = moved.state, moved.shared
        path.append(shared["w"].item())
    return path


def test_mean_goes_to_the_mean() -> None:
    assert twice(Mean()) == [1.0, 4.0]


def test_momentum_by_hand() -> None:
    """m = 1, then ½·1 + 3 = 3.5."""
    assert twice(Momentum(lr=1.0, beta=0.5)) == [1.0, 4.5]
    assert twice(Momentum(lr=2.0, beta=0.5)) == [2.0, 9.0]


def test_adam_of_reddi_by_hand() -> None:
    """β₁ = ½, β₂ = ¼, τ = 1, v₀ = τ² = 1: m = ½, v = ¼ + ¾ = 1, θ = η·½/2. Then m = ¼ + 1½, v = ¼ + ¾·9 = 7."""
    first = 0.1 * 0.5 / 2
    assert twice(Adaptive("adam", lr=0.1, beta1=0.5, beta2=0.25, tau=1.0)) == pytest.approx(
        [first, first + 0.1 * 1.75 / (math.sqrt(7) + 1)]
    )


def test_yogi_by_hand() -> None:
    """v = 1 − ¾·1·sign(0) = 1, then 1 − ¾·9·sign(1 − 9) = 7.75."""
    first = 0.1 * 0.5 / 2
    assert twice(Adaptive("yogi", lr=0.1, beta1=0.5, beta2=0.25, tau=1.0)) == pytest.approx(
        [first, first + 0.1 * 1.75 / (math.sqrt(7.75) + 1)]
    )


def test_adagrad_by_hand() -> None:
    """β₁ = 0: m = Δ; v = 1 + 1 = 2, then 11."""
    first = 0.1 * 1 / (math.sqrt(2) + 1)
    assert twice(Adaptive("adagrad", lr=0.1, beta1=0.0, tau=1.0)) == pytest.approx(
        [first, first + 0.1 * 3 / (math.sqrt(11) + 1)]
    )


def test_torch_form_is_torch_optim_adam_on_the_negative_update() -> None:
    generator = torch.Generator().manual_seed(0)
    parameter = torch.randn(3, generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([parameter], lr=0.05, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-5)
    state: Tensors = {}
    shared = {"w": parameter.detach().clone()}
    for _ in range(4):
        delta = torch.randn(3, generator=generator)
        moved = TorchAdam(lr=0.05).step(state, shared, {"w": shared["w"] + delta}, NONE)
        state, shared = moved.state, moved.shared
        parameter.grad = -delta
        optimiser.step()
        assert_close(shared["w"], parameter.detach())


def test_fedadam_without_memory_and_with_large_tau_is_proportional_to_fedavg() -> None:
    path = twice(Adaptive("adam", lr=1e6, beta1=0.0, beta2=0.0, tau=1e6))
    assert path == pytest.approx([1.0, 4.0], rel=1e-4)


def test_fedexp_step_by_hand() -> None:
    """Δ₀ = (4, 0), Δ₁ = (0, 4), equal weights: Δ̄ = (2, 2), Σ w‖Δ‖² = 16, η = 16 / 2(8 + 0) = 1: exactly FedAvg.
    Three orthogonal updates of length 3: Δ̄ = (1, 1, 1), Σ w‖Δ‖² = 9, η = 9 / (2·3) = 1.5."""
    zero = {"w": torch.zeros(2)}
    assert_close(
        FedExp(eps=0.0).step({}, zero, {"w": torch.full((2,), 2.0)}, torch.tensor(16.0)).shared,
        {"w": torch.full((2,), 2.0)},
    )
    three = {"a": torch.zeros(2), "b": torch.zeros(1)}
    mean = {"a": torch.ones(2), "b": torch.ones(1)}
    moved = FedExp(eps=0.0, last_two=True).step({}, three, mean, torch.tensor(9.0))
    assert_close(moved.shared, {"a": torch.full((2,), 1.5), "b": torch.full((1,), 1.5)})
    assert_close(moved.shown, {"a": torch.full((2,), 0.75), "b": torch.full((1,), 0.75)})
    assert_close(FedExp(eps=1.5).step({}, three, mean, torch.tensor(9.0)).shared["b"], torch.ones(1))  # 9/(2·4.5) = 1


def test_fedexp_never_steps_less_than_fedavg() -> None:
    moved = FedExp().step({}, {"w": torch.zeros(1)}, {"w": torch.ones(1)}, torch.tensor(1.0))
    assert moved.shared["w"].item() == 1.0
