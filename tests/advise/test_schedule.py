"""Budgets, spent by hand: a run costs weight · rounds + measuring."""

from __future__ import annotations

import pytest

from torso.advise.budget import PLANNED_SHARE, Budget, Until
from torso.advise.candidates import nearest_rate, rate_beyond, untried_rate_near
from torso.advise.schedule import Prices, shapes, shortest, smallest, spread
from torso.runs.events import Stop

EIGHT = (1.0,) * 8


def prices(arms: tuple[float, ...] = EIGHT) -> Prices:
    return Prices(arms=arms, alone=2.0, measuring=3.0, again=2.0, rates=2)


def test_a_budget_by_hand() -> None:
    """16 rounds at most in a run. A run of the first rung costs 16 + 3 = 19, of the others 16 + 2 = 18, training alone
    2·16 + 2 = 34. Two rates of FedAvg, seven of eight arms and three further rates: 12·19 = 228. Six runs on the second
    part, three and training alone on the third: 9·18 + 34 = 196."""
    plan = spread(424, 16, prices())
    assert plan is not None
    assert (plan.arms, plan.rounds, plan.costs) == (7, 16, (228, 108, 88))


def test_a_smaller_budget_has_shorter_runs_and_then_fewer_arms() -> None:
    """With r rounds 12·(r + 3) + 9·(r + 2) + 2·r + 2 = 23 r + 56: 423 pay for r = 15, 240 for r = 8. That is half, so
    239 have six arms: 229. One arm has 174 with 8 rounds, and 72 with the two that are the least."""
    for budget, shape in ((423, (7, 15)), (240, (7, 8)), (239, (6, 8)), (174, (1, 8)), (173, (1, 7)), (72, (1, 2))):
        plan = spread(budget, 16, prices())
        assert plan is not None
        assert (plan.arms, plan.rounds) == shape
        assert plan.cost <= budget
    assert spread(71, 16, prices()) is None
    assert smallest(16, prices()) == 72


def test_weights_count() -> None:
    """One of six arms costs 2, and so may the further rates and all that go on: (2 + 7 + 6)·16 + 33, (2 + 8)·16 + 12,
    and (1 + 4 + 2)·16 + 8."""
    plan = spread(600, 16, prices((2.0, *EIGHT[1:6])))
    assert plan is not None
    assert plan.costs == (273, 172, 120)


def test_what_is_wanted_first() -> None:
    """All rounds, shorter runs down to half; then fewer arms; then still shorter runs, to an eighth."""
    assert shapes(9, 6) == [(7, 6), (7, 5), (7, 4), (7, 3), (6, 3), (5, 3), (4, 3), (3, 3), (2, 3), (1, 3), (1, 2)]
    assert [shortest(most) for most in (1, 8, 16, 30, 100)] == [1, 2, 2, 4, 13]
    assert shapes(1, 1) == [(1, 1)]


def test_minutes_become_rounds_by_the_pace_so_far() -> None:
    """10 rounds in 20 s: 2 s each. Of 2 minutes 100 s are left, and 85 % of these are planned with."""
    now = [0.0]
    budget = Budget(None, 2.0, clock=lambda: now[0])
    now[0] = 20.0
    budget.pay(10, 20.0)
    assert budget.left() == pytest.approx(PLANNED_SHARE * 100 / 2)
    assert (budget.ends, budget.spent, budget.seconds) == (120.0, 10, 20.0)
    now[0] = 130.0
    assert budget.left() == 0
    rounds = Budget(100, None, clock=lambda: now[0])
    rounds.pay(30, 1e9)
    assert (rounds.left(), rounds.ends) == (70, None)  # time does not count


def test_runs_end_at_a_time_or_when_the_user_says_so() -> None:
    now, user = [0.0], Stop()
    until = Until(user, lambda: now[0])
    assert not until.asked
    until.at = 5.0
    now[0] = 6.0
    assert until.asked
    until.at = None
    assert not until.asked
    user.ask()
    assert until.asked


def test_rates_lie_on_a_grid_and_widen_at_its_ends() -> None:
    assert [nearest_rate(0.03 * factor) for factor in (1, 3, 10, 0.3)] == [0.03, 0.1, 0.3, 0.01]
    assert rate_beyond([0.03, 0.1, 0.3], 0.3) == 1.0
    assert rate_beyond([0.03, 0.1, 0.3], 0.03) == 0.01
    assert rate_beyond([0.03, 0.1, 0.3], 0.1) is None
    assert rate_beyond([3.0], 3.0) == 1.0  # nothing is beyond the largest
    assert [untried_rate_near(tried, 1.0) for tried in ([0.1, 1.0], [0.1, 1.0, 3.0], [0.1, 0.3, 1.0, 3.0])] == [
        3.0,
        0.3,
        None,
    ]
