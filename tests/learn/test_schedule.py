"""The tables of spec 1.4."""

from __future__ import annotations

import pytest

from torso.learn.schedule import schedules


@pytest.mark.parametrize(("rounds", "edges"), [(32, (16, 24)), (80, (40, 60)), (320, (160, 240))])
def test_step_half_3q_changes_right_after_its_rounds(rounds: int, edges: tuple[int, int]) -> None:
    step = schedules["step-half-3q"]
    rates = [step(r, rounds, 0.99) for r in range(1, rounds + 1)]
    expected = [1.0] * edges[0] + [0.1] * (edges[1] - edges[0]) + [0.01] * (rounds - edges[1])
    assert rates == pytest.approx(expected)


def test_step_half_3q_of_tiny_runs_decays_once_where_edges_coincide_and_never_at_zero() -> None:
    step = schedules["step-half-3q"]
    assert [step(r, 1, 0.99) for r in (1,)] == [1.0]  # ⌊1/2⌋ = ⌊3/4⌋ = 0
    assert [step(r, 2, 0.99) for r in (1, 2)] == pytest.approx([1.0, 0.1])  # both edges at 1: once
    assert [step(r, 3, 0.99) for r in (1, 2, 3)] == pytest.approx([1.0, 0.1, 0.01])


def test_other_schedules() -> None:
    assert schedules["exp"](3, 100, 0.99) == pytest.approx(0.99**2)
    assert schedules["const"](70, 100, 0.99) == 1.0
    assert [schedules["cosine"](r, 4, 0.99) for r in (1, 3)] == pytest.approx([1.0, 0.5])
