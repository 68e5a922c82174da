"""ε against closed forms, against published values, and by which theorem a fixed sample is counted."""

from __future__ import annotations

import math
import sys

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from torso.errors import RequestError
from torso.server import accountant
from torso.server.accountant import Releases, epsilon_of, library, noise_for


def gaussian(sigma: float, delta: float) -> float:
    """ε of one Gaussian release (Balle and Wang 2018): δ = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)."""

    def excess(epsilon: float) -> float:
        near, far = norm.cdf(0.5 / sigma - epsilon * sigma), norm.cdf(-0.5 / sigma - epsilon * sigma)
        return float(near - math.exp(epsilon) * far - delta)

    return float(brentq(excess, 0, 60))


def sampled(sigma: float, q: float, delta: float) -> float:
    """ε of one release over a Poisson sample: of P = (1 − q)N(0, σ²) + qN(1, σ²) and Q = N(0, σ²), the larger way."""

    def mass(x: float) -> tuple[float, float]:  # of P and Q above x
        q_above = float(norm.sf(x / sigma))
        return (1 - q) * q_above + q * float(norm.sf((x - 1) / sigma)), q_above

    def excess(epsilon: float) -> float:
        over = (math.exp(epsilon) - (1 - q)) / q  # where P/Q = e^ε
        p_above, q_above = mass(sigma**2 * math.log(over) + 0.5)
        added = p_above - math.exp(epsilon) * q_above
        under = (math.exp(-epsilon) - (1 - q)) / q  # where Q/P = e^ε; Q/P is largest far below
        removed = 0.0
        if under > 0:
            p_above, q_above = mass(sigma**2 * math.log(under) + 0.5)
            removed = (1 - q_above) - math.exp(epsilon) * (1 - p_above)
        return max(added, removed) - delta

    return float(brentq(excess, 1e-9, 40))


@pytest.mark.parametrize(("sigma", "rounds"), [(1.0, 1), (4.0, 1), (4.0, 16), (0.6, 2)])
def test_rounds_with_everybody_are_one_gaussian(sigma: float, rounds: int) -> None:
    """T releases with σ are one with σ/√T."""
    found = epsilon_of([Releases(rounds, sigma, 1.0)], 1e-3)
    assert found == pytest.approx(gaussian(sigma / math.sqrt(rounds), 1e-3), rel=1e-3)


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.2), (0.5, 0.05), (2.0, 0.9)])
def test_one_round_with_a_poisson_sample(sigma: float, q: float) -> None:
    assert epsilon_of([Releases(1, sigma, q)], 1e-3) == pytest.approx(sampled(sigma, q, 1e-3), rel=2e-3)


def test_published_values() -> None:
    """Abadi et al. 2016, section 3.2: q = 0.01, σ = 4, 10,000 steps, δ = 1e-5 give ε = 1.26 by moments. PLD, which is
    tighter, may be below, and not below what one step in a hundred costs without being sampled."""
    releases = Releases(10_000, 4.0, 0.01)
    by_moments = accountant._by_rdp((releases,), 1e-5)
    found = epsilon_of([releases], 1e-5)
    assert 0.8 < found < by_moments < 1.27


def test_different_releases_compose() -> None:
    """A Gaussian release with σ₁ and one with σ₂ are one with (σ₁⁻² + σ₂⁻²)^−½."""
    found = epsilon_of([Releases(1, 2.0, 1.0), Releases(1, 3.0, 1.0)], 1e-3)
    assert found == pytest.approx(gaussian((2.0**-2 + 3.0**-2) ** -0.5, 1e-3), rel=1e-3)
    assert epsilon_of([Releases(0, 2.0, 1.0), Releases(3, 3.0, 1.0)], 1e-3) == epsilon_of([Releases(3, 3.0, 1.0)], 1e-3)


def test_no_release_costs_nothing_and_no_noise_has_no_bound() -> None:
    assert epsilon_of([Releases(0, 1.0, 1.0)], 1e-3) == 0.0
    assert epsilon_of([Releases(1, 0.0, 0.5)], 1e-3) == math.inf


def test_a_fixed_sample_is_counted_by_replacing_a_client() -> None:
    """dp-accounting has a theorem for samples without replacement where one client is replaced by any other. That moves
    the sum by 2S, so the noise counts half."""
    dp = library()
    plain = dp.rdp.RdpAccountant(accountant._ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    plain.compose(dp.SampledWithoutReplacementDpEvent(5000, 100, dp.GaussianDpEvent(4.0 / 2)), 20)
    found = epsilon_of([Releases(20, 4.0, 0.02, True, 5000, 100)], 1e-4)
    assert found == pytest.approx(plain.get_epsilon(1e-4))
    poisson, everybody = (epsilon_of([Releases(20, 4.0, rate)], 1e-4) for rate in (0.02, 1.0))
    assert poisson < found < everybody


def test_a_fixed_sample_is_never_worse_than_no_sample() -> None:
    """10 of 50 clients with z = 1: the theorem gives more than plain composition does, which holds as well."""
    fixed, everybody = Releases(5, 1.0, 0.2, True, 50, 10), Releases(5, 1.0, 1.0)
    assert accountant._by_rdp((fixed,), 1e-2) > epsilon_of([fixed], 1e-2) == epsilon_of([everybody], 1e-2)
    assert epsilon_of([Releases(5, 1.0, 1.0, True, 50, 50)], 1e-2) == epsilon_of([everybody], 1e-2)


def test_little_noise_is_counted_by_renyi() -> None:
    few = (Releases(50, 0.05, 0.2),)
    assert epsilon_of(few, 1e-2) == accountant._by_rdp(few, 1e-2) > 1000


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_for_a_budget_keeps_it_and_wastes_little(epsilon: float) -> None:
    def spent(noise: float) -> float:
        return epsilon_of([Releases(20, noise, 0.2)], 1e-2)

    found = noise_for(epsilon, spent)
    assert spent(found) <= epsilon < spent(found * 0.997)
    assert float(f"{found:.4g}") == found


def test_the_noise_keeps_the_budget_where_rounding_up_costs_more() -> None:
    """ε by cells is no smooth curve: here it lies above the budget at 1.235 and 1.236, to which 1.2343 is rounded."""

    def spent(noise: float) -> float:
        return 1.0 if noise >= 1.237 or 1.2341 < noise < 1.235 else 1.001

    assert noise_for(1.0, spent) == 1.237


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(RequestError, match=r"privacy\.epsilon = 1 cannot be reached"):
        noise_for(1.0, lambda _: 2.0)


def test_without_the_library_one_line_says_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(RequestError, match=r"torso\[privacy\]"):
        library()
