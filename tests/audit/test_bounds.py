"""Bounds from scores, against values by hand and against scores whose distribution is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from torso.audit.bounds import Rates, Scores, epsilon_bound, gaussian_profile, lower_bound, noise_bound, upper_bound


def family(noise: float):
    return gaussian_profile(1 / noise)


def scores(shift: float, count: int, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(shift, 1, count), rng.normal(0, 1, count))


def test_clopper_and_pearson_by_hand() -> None:
    """No success in n: (1 − p)^n = error. All n: p^n = error."""
    assert upper_bound(0, 20, 0.05) == pytest.approx(1 - 0.05 ** (1 / 20))
    assert lower_bound(20, 20, 0.05) == pytest.approx(0.05 ** (1 / 20))
    assert (lower_bound(0, 20, 0.05), upper_bound(20, 20, 0.05)) == (0.0, 1.0)


def test_epsilon_of_rates_by_hand() -> None:
    """0.41 ≤ e^ε · 0.1 + 0.01 gives ε = ln 4; the other side, 0.9 ≤ e^ε · 0.59 + 0.01, gives less."""
    assert Rates(0.0, hits=0.41, alarms=0.1).epsilon(0.01) == pytest.approx(math.log(4))
    assert Rates(0.0, hits=0.9, alarms=0.59).epsilon(0.01) == pytest.approx(math.log(4))
    assert Rates(0.0, hits=0.3, alarms=0.4).epsilon(0.01) == 0.0


def test_gaussian_profile_known_values() -> None:
    """At ε = 0, δ is the total variation 2Φ(μ/2) − 1. Elsewhere: ∫ max(p − e^ε q, 0) on a fine grid."""
    x = np.linspace(-12, 14, 400_001)
    density = [np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (1.5, 0.0)]
    epsilons = np.array([0.0, 0.7, 3.0])
    found = gaussian_profile(1.5)(epsilons)
    for epsilon, delta in zip(epsilons, found, strict=True):
        area = np.clip(density[0] - math.exp(epsilon) * density[1], 0, None).sum() * (x[1] - x[0])
        assert delta == pytest.approx(area, rel=1e-4)
    assert found[0] == pytest.approx(2 * NormalDist().cdf(0.75) - 1)


def test_bounds_lie_on_their_side_of_the_truth() -> None:
    """Noise 0.5: two normal distributions 2 apart, whose ε at δ = 0.01 is between 4 and 5."""
    found = scores(2.0, 3000)
    assert 0.5 <= noise_bound(found, family, 0.95, about=0.5) < 0.65
    epsilon = epsilon_bound(found, 0.01, 0.95)
    assert epsilon > 2
    assert gaussian_profile(2.0)(np.array([epsilon]))[0] >= 0.01


@pytest.mark.parametrize("seed", range(5))
def test_what_is_right_is_not_accused(seed: int) -> None:
    """Each claim is wrongly refuted with probability 0.1 % at most."""
    assert noise_bound(scores(1.0, 500, seed), family, 0.999, about=1.0) >= 1.0


def test_scores_without_a_difference_prove_nothing() -> None:
    found = scores(0.0, 400)
    assert epsilon_bound(found, 1e-5, 0.95) < 0.5
    assert noise_bound(found, family, 0.999, about=1.0) > 4


def test_far_too_little_noise_ends_the_search_at_its_end() -> None:
    assert noise_bound(scores(60.0, 400), family, 0.95, about=8.0) == 1.0
