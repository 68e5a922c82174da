"""Budgets, spent by hand: a run costs weight · rounds + measuring."""

from __future__ import annotations

import pytest

from torso.advise.budget import SURE, Budget, Until
from torso.advise.candidates import beyond, near
from torso.advise.schedule import final_rounds, spread, survivors
from torso.advise.tournament import smallest
from torso.runs.events import Stop

EIGHT = [1.0] * 8
JUDGED = [1.0, 2.0, 1.0]
MEASURING = (2.0, 4.0)


def test_a_budget_by_hand() -> None:
    """200 rounds, 16 at most in a run. Judgement: 4·16 + 3·4 = 76; twice that is more than half of 200, so one seed.
    Heats of r rounds: 8r + 8·2; final: 1 + 8/4 = 3 arms of min(16, 4r) rounds: 3·16 + 3·4. With r = 6: 64 + 60 + 76."""
    plan = spread(200, 16, EIGHT, JUDGED, MEASURING, 6)
    assert plan is not None
    assert (plan.arms, plan.heats.rounds, plan.heats.cost) == (8, 6, 64)
    assert (len(plan.final.weights), plan.final.rounds, plan.final.cost) == (3, 16, 60)
    assert (plan.judgement.rounds, plan.seeds, plan.judgement.cost) == (16, 1, 76)
    assert plan.cost == 200
    less = spread(199, 16, EIGHT, JUDGED, MEASURING, 6)
    assert less is not None
    assert less.heats.rounds == 5


def test_a_large_budget_buys_two_seeds_and_no_more_rounds_than_the_config_has() -> None:
    plan = spread(10_000, 16, EIGHT, JUDGED, MEASURING, 6)
    assert plan is not None
    assert (plan.heats.rounds, plan.final.rounds, plan.judgement.rounds, plan.seeds) == (16, 16, 16, 2)
    edge = spread(2 * 2 * 76, 16, EIGHT, JUDGED, MEASURING, 6)  # two seeds fit into half of it
    assert edge is not None
    assert edge.seeds == 2


def test_a_small_budget_leaves_out_the_last_arms_and_then_says_no() -> None:
    """Six arms in heats of 2 rounds: 12 + 12; final 3·8 + 12: together 60. Judged within half of 116: 11 rounds, 56."""
    plan = spread(116, 16, EIGHT, JUDGED, MEASURING, 6)
    assert plan is not None
    assert (plan.arms, plan.heats.rounds, plan.final.rounds, plan.judgement.rounds) == (6, 2, 8, 11)
    assert spread(115, 16, EIGHT, JUDGED, MEASURING, 6) is None
    assert smallest(16, EIGHT, JUDGED, MEASURING, 6) == 116


def test_weights_count() -> None:
    """One arm costs 2: heats 9r + 16, final 3·(9/8)·16 + 12 = 66; of 200 − 76 that leaves 4 rounds."""
    plan = spread(200, 16, [2.0, *EIGHT[1:]], JUDGED, MEASURING, 6)
    assert plan is not None
    assert (plan.heats.rounds, plan.final.cost) == (4, 66)


def test_who_goes_on_and_for_how_long() -> None:
    assert [survivors(arms) for arms in (2, 6, 8, 16, 17)] == [3, 3, 3, 5, 6]
    assert final_rounds(60, 16, [1.0, 1.0, 1.0], 4.0, 2) == 16  # (60 − 12) / 3
    assert final_rounds(59, 16, [1.0, 1.0, 1.0], 4.0, 2) == 15
    assert final_rounds(0, 16, [1.0], 4.0, 5) == 5  # not fewer than the heats had


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
    assert beyond([0.01, 0.03, 0.1, 0.3], 0.3) == 1.0
    assert beyond([0.01, 0.03, 0.1, 0.3], 0.01) == 0.003
    assert beyond([0.01, 0.03, 0.1, 0.3], 0.1) is None
    assert beyond([3.0], 3.0) == 1.0  # nothing is beyond the largest
