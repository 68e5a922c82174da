"""Budgets, spent by hand: a run costs weight · rounds + measuring."""

from __future__ import annotations

import pytest

from torso.advise.budget import SURE, Budget, Until
from torso.advise.candidates import beyond, near
from torso.advise.schedule import shortest, spread, survivors
from torso.advise.tournament import smallest
from torso.runs.events import Stop

EIGHT = [1.0] * 8
JUDGED = [1.0, 2.0, 1.0]
MEASURING = (2.0, 4.0)


def test_a_budget_by_hand() -> None:
    """240 rounds, 16 at most in a run, 2 rates of FedAvg. Judgement: 4·16 + 3·4 = 76; twice that is more than half of
    240, so one seed. Heats of r rounds: 8r + 8·2. Rates and final have 4r rounds, at most 16: 2·16 + 2·4 = 40, and for
    8/4 = 2 arms 40. With r = 8: 80 + 40 + 40 + 76 = 236; with r = 9: 244."""
    plan = spread(240, 16, EIGHT, JUDGED, MEASURING, 2)
    assert plan is not None
    assert (plan.arms, plan.heats.rounds, plan.heats.cost) == (8, 8, 80)
    assert (len(plan.rates.weights), plan.rates.rounds, plan.rates.cost) == (2, 16, 40)
    assert (len(plan.final.weights), plan.final.rounds, plan.final.cost) == (2, 16, 40)
    assert (plan.judgement.rounds, plan.seeds, plan.judgement.cost) == (16, 1, 76)
    assert plan.cost == 236
    more = spread(244, 16, EIGHT, JUDGED, MEASURING, 2)
    assert more is not None
    assert more.heats.rounds == 9


def test_a_large_budget_buys_two_seeds_and_no_more_rounds_than_the_config_has() -> None:
    plan = spread(10_000, 16, EIGHT, JUDGED, MEASURING, 2)
    assert plan is not None
    assert (plan.heats.rounds, plan.final.rounds, plan.judgement.rounds, plan.seeds) == (16, 16, 16, 2)
    edge = spread(2 * 2 * 76, 16, EIGHT, JUDGED, MEASURING, 2)  # two seeds fit into half of it
    assert edge is not None
    assert edge.seeds == 2


def test_a_small_budget_leaves_out_the_last_arms_and_then_says_no() -> None:
    """One arm: heats of 2 rounds 4, then 8 rounds: final 12, rates 24, together 40. The judgement has half of 72: six
    rounds, 36, too much; of 76 six as well: 36 + 40. Two arms cost 8 + 12 + 24."""
    plan = spread(76, 16, EIGHT, JUDGED, MEASURING, 2)
    assert plan is not None
    assert (plan.arms, plan.heats.rounds, plan.final.rounds, plan.judgement.rounds) == (1, 2, 8, 6)
    assert spread(75, 16, EIGHT, JUDGED, MEASURING, 2) is None
    assert smallest(16, EIGHT, JUDGED, MEASURING, 2) == 76


def test_weights_count() -> None:
    """One arm costs 2: heats 9r + 16, final 2·(9/8)·16 + 8 = 44; 240 − 76 − 40 − 44 − 16 leaves 7 rounds."""
    plan = spread(240, 16, [2.0, *EIGHT[1:]], JUDGED, MEASURING, 2)
    assert plan is not None
    assert (plan.heats.rounds, plan.final.cost) == (7, 44)


def test_a_long_run_has_long_heats() -> None:
    """A heat has an eighth of the rounds; a budget for less has fewer arms, not shorter heats."""
    assert [shortest(most) for most in (1, 8, 16, 30, 100)] == [1, 2, 2, 4, 13]
    assert [survivors(arms) for arms in (1, 4, 5, 11)] == [1, 1, 2, 3]


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
