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
    Four of them at a second seed cost 4·(16 + 2) = 72. With all eight arms 228 + 72 + 106 = 406; with six 368."""
    for budget, arms in ((406, 8), (405, 7), (387, 7), (368, 6)):
        plan = spread(budget, 16, prices())
        assert plan is not None
        assert (plan.count, plan.rates.rounds, plan.arms.rounds, plan.again.rounds) == (arms, 16, 16, 16)
        assert (plan.judgement.rounds, plan.judgement.seeds, plan.judgement.cost) == (16, 2, 106)
        assert plan.cost == (4 + arms) * 19 + 72 + 106


def test_a_smaller_budget_has_shorter_runs_of_the_first_arms() -> None:
    """With six arms of r rounds 10·(r + 3) + 4·(r + 2) = 14 r + 38. 300 − 106 = 194 pay for r = 11, 256 − 106 = 150 for
    r = 8. That is half, so 255 have five arms: 9·11 + 40 = 139."""
    for budget, shape in ((300, (6, 11)), (256, (6, 8)), (255, (5, 8))):
        plan = spread(budget, 16, prices())
        assert plan is not None
        assert (plan.count, plan.arms.rounds) == shape
        assert plan.judgement.seeds == 2


def test_a_still_smaller_budget_has_one_judged_seed_and_then_says_no() -> None:
    """Half of 211 is less than 106: one seed of 16 rounds is 36 + 34 = 70, and 141 pay for 9·11 + 40. 83: the judgement
    has 41.5, so floor((41.5 − 6) / 4) = 8 rounds, 38; 45 pay for one arm of two rounds, 5·5 + 4·4 = 41. Of 78 are 40
    left."""
    plan = spread(211, 16, prices())
    assert plan is not None
    assert (plan.count, plan.arms.rounds, plan.judgement.rounds, plan.judgement.seeds) == (5, 8, 16, 1)
    plan = spread(83, 16, prices())
    assert plan is not None
    assert (plan.count, plan.arms.rounds, plan.judgement.rounds) == (1, 2, 8)
    assert spread(78, 16, prices()) is None
    assert smallest(16, prices()) == 79


def test_weights_count() -> None:
    """One of six arms costs 2 and the further rates 7/6 each: (2 + 7 + 7/3)·16 + 30. At the second seed two cost 1 and
    two 7/6: (2 + 7/3)·16 + 8."""
    plan = spread(400, 16, prices((2.0, *EIGHT[1:6])))
    assert plan is not None
    assert plan.rates.cost + plan.arms.cost == pytest.approx((9 + 7 / 3) * 16 + 30)
    assert plan.again.cost == pytest.approx((2 + 7 / 3) * 16 + 8)


def test_what_is_wanted_first() -> None:
    """All arms, fewer; then shorter runs down to half; then fewer of these; then still shorter ones, to an eighth."""
    assert shapes(7, 6) == [
        *((7, 6), (6, 6), (6, 5), (6, 4), (6, 3)),
        *((5, 3), (4, 3), (3, 3), (2, 3), (1, 3), (1, 2)),
    ]
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
