"""Paired differences worked out by hand, and the cases in which none may be given."""

from __future__ import annotations

import math

import pytest

from torso.measure.fairness import worst
from torso.report.records import Scores
from torso.report.statistics import Difference, Refused, paired_difference, student_interval

T_2 = 4.302652729911275  # the 97.5% quantile of Student's t with two degrees of freedom (any table)


def test_the_interval_of_three_values() -> None:
    """1, 2, 3: mean 2, std 1 (ddof 1), standard error 1/√3."""
    mean, low, high = student_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert low == pytest.approx(2 - T_2 / math.sqrt(3))
    assert high == pytest.approx(2 + T_2 / math.sqrt(3))


def test_one_value_has_no_interval_and_equal_values_one_of_no_width() -> None:
    assert student_interval([5.0]) == (5.0, None, None)
    assert student_interval([5.0, 5.0, 5.0]) == (5.0, 5.0, 5.0)


def test_seeds_are_averaged_per_client_before_clients_are_compared() -> None:
    """Differences: seed 0 gives 1, 4, 4 and seed 1 gives 1, 0, 2, so clients have 1, 2, 3."""
    ours = {0: Scores.of([11.0, 24.0, 34.0]), 1: Scores.of([11.0, 20.0, 32.0])}
    theirs = {0: Scores.of([10.0, 20.0, 30.0]), 1: Scores.of([10.0, 20.0, 30.0])}
    d = paired_difference(ours, theirs)
    assert isinstance(d, Difference)
    assert (d.mean, d.pairs, d.over) == (2, 3, "clients")
    assert d.low == pytest.approx(2 - T_2 / math.sqrt(3))
    assert d.by_seed == (3, 1)
    assert not d.clear
    back = paired_difference(theirs, ours)
    assert isinstance(back, Difference)
    assert (back.mean, back.low) == (-2, pytest.approx(-d.high if d.high is not None else None))


def test_pairing_finds_what_the_spread_over_clients_would_hide() -> None:
    ours, theirs = Scores.of([11.0, 51.0, 92.0]), Scores.of([10.0, 50.0, 90.0])
    d = paired_difference({0: ours}, {0: theirs})
    assert isinstance(d, Difference)
    assert d.mean == pytest.approx(4 / 3)
    same = paired_difference({0: Scores.of([11.0, 51.0, 91.0])}, {0: theirs})
    assert isinstance(same, Difference)
    assert same.clear
    assert (same.low, same.high) == (1, 1)


def test_a_client_that_one_side_could_not_measure_is_left_out() -> None:
    d = paired_difference({0: Scores.of([11.0, math.nan, 33.0])}, {0: Scores.of([10.0, 20.0, 30.0])})
    assert isinstance(d, Difference)
    assert (d.mean, d.pairs) == (2, 2)


def test_a_single_model_pairs_seeds() -> None:
    ours, theirs = (
        {s: Scores(v, 0, 1) for s, v in enumerate(values)} for values in ((51.0, 62.0, 73.0), (50.0, 60.0, 70.0))
    )
    d = paired_difference(ours, theirs)
    assert isinstance(d, Difference)
    assert (d.mean, d.pairs, d.over) == (2, 3, "seeds")
    one = paired_difference({0: ours[0]}, {0: theirs[0]})
    assert isinstance(one, Difference)
    assert (one.mean, one.low, one.high, one.clear) == (1, None, None, False)


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ({0: Scores.of([1.0, 2.0])}, {1: Scores.of([1.0, 2.0])}, "no seed in common"),
        ({0: Scores.of([1.0, 2.0])}, {0: Scores.of([1.0, 2.0, 3.0])}, "different numbers of clients: 2, 3"),
        ({0: Scores.of([math.nan, 2.0])}, {0: Scores.of([1.0, math.nan])}, "no client was measured on both sides"),
    ],
)
def test_what_cannot_be_paired_is_refused(ours: dict[int, Scores], theirs: dict[int, Scores], reason: str) -> None:
    assert paired_difference(ours, theirs) == Refused(reason)


def test_the_worst_tenth() -> None:
    assert worst([float(v) for v in range(20)]) == 0.5  # 0 and 1
    assert worst([3.0, math.nan, 7.0]) == 3
