"""Budgets, spent by hand: a run costs weight · rounds + measuring."""

from __future__ import annotations

import pytest

from torso.advise.budget import SURE, Budget, Until
from torso.advise.candidates import beside, beyond, near
from torso.advise.schedule import Prices, shapes, shortest, smallest, spread
from torso.runs.events import Stop

EIGHT = (1.0,) * 8


def prices(arms: tuple[float, ...] = EIGHT) -> Prices:
    return Prices(arms=arms, pair=(1.0, 1.0), alone=2.0, measuring=3.0, judging=2.0, rates=2)


def test_a_budget_by_hand() -> None:
    """16 rounds at most in a run. A seed of the judgement costs 2·16 + 2·2 = 36, training alone 2·16 + 2 = 34: 106 with
    two seeds. A run of the tournament costs 16 + 3 = 19: two rates of FedAvg, two further rates and a arms (4 + a)·19.
    With all eight arms 228 + 106 = 334; with seven 315; with five 277."""
    for budget, arms in ((334, 8), (333, 7), (315, 7), (277, 5)):
        plan = spread(budget, 16, prices())
        assert plan is not None
        assert (plan.count, plan.rates.rounds, plan.arms.rounds) == (arms, 16, 16)
        assert (plan.judgement.rounds, plan.judgement.seeds, plan.judgement.cost) == (16, 2, 106)
        assert plan.cost == (4 + arms) * 19 + 106


def test_a_smaller_budget_has_shorter_runs_of_the_first_arms() -> None:
    """Nine runs of r rounds cost 9·(r + 3). Half of 212 pays for two seeds of the judgement: 106 are left, and
    9·(8 + 3) = 99. Half of 211 does not: one seed of 16 rounds is 36 + 34 = 70, and 141 are left: 9·(12 + 3) = 135."""
    plan = spread(212, 16, prices())
    assert plan is not None
    assert (plan.count, plan.arms.rounds, plan.judgement.seeds) == (5, 8, 2)
    less = spread(211, 16, prices())
    assert less is not None
    assert (less.count, less.arms.rounds, less.judgement.seeds, less.judgement.rounds) == (5, 12, 1, 16)


def test_a_still_smaller_budget_has_fewer_arms_and_then_says_no() -> None:
    """140: one seed of 16 rounds, 70; 70 pay for six runs of 8 rounds, 11 each: two arms. 47: the judgement has 23.5,
    so floor((23.5 − 6) / 4) = 4 rounds, 22; 25 pay for five runs of 2 rounds, 5 each: one arm. Of 46 are 24 left."""
    plan = spread(140, 16, prices())
    assert plan is not None
    assert (plan.count, plan.arms.rounds, plan.judgement.rounds) == (2, 8, 16)
    plan = spread(47, 16, prices())
    assert plan is not None
    assert (plan.count, plan.arms.rounds, plan.judgement.rounds) == (1, 2, 4)
    assert spread(46, 16, prices()) is None
    assert smallest(16, prices()) == 47


def test_weights_count() -> None:
    """An arm costs 2: nine runs of 16 rounds, of which one costs 2 and the further rates 1.2 each: 10.4·16 + 27."""
    plan = spread(300, 16, prices((2.0, *EIGHT[1:5])))
    assert plan is not None
    assert plan.rates.cost + plan.arms.cost == pytest.approx(10.4 * 16 + 27)


def test_what_is_wanted_first() -> None:
    """All arms, fewer; then shorter runs down to half; then fewer of these; then still shorter ones, to an eighth."""
    assert shapes(6, 6) == [(6, 6), (5, 6), (5, 5), (5, 4), (5, 3), (4, 3), (3, 3), (2, 3), (1, 3), (1, 2)]
    assert [shortest(most) for most in (1, 8, 16, 30, 100)] == [1, 2, 2, 4, 13]
    assert shapes(1, 1) == [(1, 1)]


def test_minutes_become_rounds_by_the_pace_so_far() -> None:
    """10 rounds in 20 s: 2 s each. Of 2 minutes 100 s are left, and 85 % of these are planned with."""
    now = [0.0]
    budget = Budget(None, 2.0, clock=lambda: now[0])
    now[0] = 20.0
    budget.pay(10, 20.0)
    assert budget.left() == pytest.approx(SURE * 100 / 2)
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
    assert [near(0.03 * factor) for factor in (1, 3, 10, 0.3)] == [0.03, 0.1, 0.3, 0.01]
    assert beyond([0.03, 0.1, 0.3], 0.3) == 1.0
    assert beyond([0.03, 0.1, 0.3], 0.03) == 0.01
    assert beyond([0.03, 0.1, 0.3], 0.1) is None
    assert beyond([3.0], 3.0) == 1.0  # nothing is beyond the largest
    assert [beside(tried, 1.0) for tried in ([0.1, 1.0], [0.1, 1.0, 3.0], [0.1, 0.3, 1.0, 3.0])] == [3.0, 0.3, None]
