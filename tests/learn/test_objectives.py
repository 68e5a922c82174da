"""Every loss against numbers worked out by hand, and the edge cases of spec 6.1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso.learn.objectives import (
    BalancedSoftmax,
    ClassTemperature,
    CrossEntropy,
    FeatureNorm,
    Margin,
    Objective,
    Reweighted,
    SquaredError,
    objectives,
)

FEATURES = torch.tensor([[[3.0, 4.0]]])
LOGITS = torch.tensor([[[1.0, 2.0, 0.0]]])  # one client, one sample, three classes
LABEL = torch.tensor([[0]])
COUNTS = torch.tensor([[16, 81, 0]])  # class 2 is absent


def loss(objective: Objective, logits: Tensor = LOGITS, counts: Tensor = COUNTS) -> float:
    return objective.per_sample(FEATURES, logits, LABEL, counts).item()


def ce(*logits: float) -> float:
    """−log softmax at class 0."""
    return -logits[0] + math.log(sum(math.exp(z) for z in logits))


def test_cross_entropy() -> None:
    assert loss(CrossEntropy()) == pytest.approx(ce(1, 2, 0))


def test_squared_error_is_the_mean_over_classes() -> None:
    """(1 − 1)² + 2² + 0² over 3."""
    assert loss(SquaredError()) == pytest.approx(4 / 3)
    assert loss(SquaredError("sum")) == pytest.approx(4)


def test_feature_norm_adds_the_length_not_its_square() -> None:
    assert loss(FeatureNorm(0.1)) == pytest.approx(ce(1, 2, 0) + 0.1 * 5)


def test_feature_norm_has_no_gradient_at_zero() -> None:
    features = torch.zeros(1, 1, 2, requires_grad=True)
    FeatureNorm(1.0).per_sample(features, LOGITS, LABEL, COUNTS).sum().backward()
    assert features.grad is not None
    assert torch.equal(features.grad, torch.zeros(1, 1, 2))


def test_reweighting_by_hand() -> None:
    """97/16, and divided by the two classes that are there; weights then average to 1 over the client's data."""
    assert loss(Reweighted(normalize=False)) == pytest.approx(97 / 16 * ce(1, 2, 0))
    assert loss(Reweighted()) == pytest.approx(97 / 32 * ce(1, 2, 0))
    weights = [97 / 2 / n for n in (16, 81)]
    assert (16 * weights[0] + 81 * weights[1]) / 97 == pytest.approx(1)


def test_margin_of_the_paper_by_hand() -> None:
    """Δ = ½·16^(−¼) = ¼ off the label's logit."""
    assert loss(Margin(0.5)) == pytest.approx(ce(0.75, 2, 0))


def test_margin_of_the_original_scales_to_the_largest_and_multiplies() -> None:
    """16^(−¼) = ½ is the largest margin of this client's classes, so it becomes γ = ½; logits × 30."""
    assert loss(Margin(0.5, "original")) == pytest.approx(ce(30 * 0.5, 60, 0))
    other = torch.tensor([[1]])
    found = Margin(0.5, "original").per_sample(FEATURES, LOGITS, other, COUNTS).item()
    assert found == pytest.approx(math.log(math.exp(30) + math.exp(50) + 1) - 50, abs=1e-6)  # 81^(−¼) = ⅓ becomes ⅓


def test_class_temperature_by_hand() -> None:
    """Factors (16/81)^½ = 4/9, 1, and 0 for the absent class, whose logit 0 stays in the sum."""
    assert loss(ClassTemperature(0.5), torch.tensor([[[1.0, 2.0, 5.0]]])) == pytest.approx(ce(4 / 9, 2, 0))


def test_balanced_softmax_by_hand() -> None:
    """exp(z) is multiplied by the count; the absent class is gone."""
    assert loss(BalancedSoftmax()) == pytest.approx(-math.log(16 * math.e / (16 * math.e + 81 * math.e**2)))
    assert loss(BalancedSoftmax(0.5)) == pytest.approx(-math.log(4 * math.e / (4 * math.e + 9 * math.e**2)))


def test_absent_class_gets_no_gradient_from_balanced_softmax() -> None:
    logits = LOGITS.clone().requires_grad_()
    BalancedSoftmax().per_sample(FEATURES, logits, LABEL, COUNTS).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0, 2].item() == 0
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 0, 0] < 0


@pytest.mark.parametrize("objective", [BalancedSoftmax(0.0), ClassTemperature(0.0), FeatureNorm(0.0)])
def test_without_strength_it_is_cross_entropy_over_all_classes(objective: Objective) -> None:
    assert loss(objective) == pytest.approx(ce(1, 2, 0))


@pytest.mark.parametrize("objective", [BalancedSoftmax(), Reweighted(), ClassTemperature(0.3)])
def test_equal_counts_are_cross_entropy(objective: Objective) -> None:
    assert loss(objective, counts=torch.tensor([[7, 7, 7]])) == pytest.approx(ce(1, 2, 0), rel=1e-5)


@pytest.mark.parametrize("name", sorted(objectives))
def test_clients_do_not_mix_and_gradients_are_finite(name: str) -> None:
    objective = objectives[name]()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 5, 2, generator=generator)
    logits = torch.randn(3, 5, 4, generator=generator).requires_grad_()
    labels = torch.randint(0, 2, (3, 5), generator=generator)
    counts = torch.tensor([[5, 1, 0, 0], [1, 9, 3, 0], [2, 2, 2, 2]])
    together = objective.per_sample(features, logits, labels, counts)
    assert together.shape == (3, 5)
    for g in range(3):
        one = slice(g, g + 1)
        alone = objective.per_sample(features[one], logits[one], labels[one], counts[one])
        assert_close(together[one], alone)
    (grad,) = torch.autograd.grad(together.sum(), logits)
    assert grad.isfinite().all()


def test_a_client_on_its_own_does_not_balance() -> None:
    kept = {name for name, cls in objectives.items() if type(cls().for_fine_tuning()) is cls}
    assert kept == {"cross-entropy", "mse", "feature-norm"}
    assert BalancedSoftmax().for_fine_tuning() == CrossEntropy()
