"""Who gains and who loses, by hand."""

from __future__ import annotations

import math

import pytest

from torso.measure import Accuracy
from torso.measure.fairness import by_group, fairness, group_gap, jain, quantiles, worse_off, worst


def test_the_worst_tenth() -> None:
    values = [float(v) for v in range(20)]
    assert worst(values[::-1]) == 0.5  # two of twenty: 0 and 1
    assert worst([30.0, None, 10.0, 20.0]) == 10.0  # at least one
    assert worst([30.0, 10.0, 20.0, 0.0], share=0.5) == 5.0
    assert worst([float(v) for v in range(21)]) == 1.0  # three of twenty-one: 0, 1, 2
    assert math.isnan(worst([None]))


def test_quantiles_interpolate_and_leave_out_who_has_no_value() -> None:
    assert quantiles([0.0, None, 10.0, 20.0, math.nan, 30.0, 40.0]) == pytest.approx((2.0, 10.0, 20.0, 30.0, 38.0))
    assert all(math.isnan(value) for value in quantiles([]))


def test_who_is_worse_off_needs_both_values() -> None:
    assert worse_off([10.0, 20.0, 30.0, None, 5.0], [11.0, 20.0, 29.0, 50.0, None]) == 1
    assert worse_off([10.0, 20.0], [11.0, 40.0], margin=1.0) == 1
    with pytest.raises(ValueError, match="zip"):
        worse_off([1.0], [1.0, 2.0])


def test_jains_index() -> None:
    assert jain([50.0, 50.0, None]) == pytest.approx(1.0)
    assert jain([80.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([10.0, 20.0, 30.0]) == pytest.approx(60**2 / (3 * 1400))
    assert math.isnan(jain([0.0, 0.0]))


def test_groups_of_clients_by_what_they_have() -> None:
    """Six clients by size, in three groups of two: 10 and 20 | 30 and 30 | 50 and 60; one has no value."""
    sizes = [60, 10, 30, 20, 50, 30, 5]
    found = by_group([90.0, 10.0, 40.0, 30.0, 70.0, 60.0, None], sizes, groups=3)
    assert [(g.low, g.high, g.clients, g.mean, g.worst) for g in found] == [
        (10, 20, 2, 20.0, 10.0),
        (30, 30, 2, 50.0, 40.0),
        (50, 60, 2, 80.0, 70.0),
    ]
    assert group_gap(found) == 60.0


def test_clients_of_equal_quantity_are_in_one_group() -> None:
    """Classes 2, 2, 2, 5 in four groups: the first three cuts are the same, so two groups are left."""
    found = by_group([10.0, 20.0, 60.0, 50.0], [2, 2, 2, 5])
    assert [(g.low, g.high, g.clients, g.mean) for g in found] == [(2, 2, 3, 30.0), (5, 5, 1, 50.0)]
    assert by_group([None], [3]) == ()
    assert math.isnan(group_gap(()))


def test_fairness_of_a_result() -> None:
    found = {
        "initial": Accuracy.over([40.0, 60.0, math.nan]),
        "personalized": Accuracy.over([50.0, 50.0, math.nan]),
        "local_only": Accuracy.over([70.0, 55.0, math.nan]),
        "generic_as_personal": Accuracy.over([1.0, 2.0, 3.0]),
        "personal": Accuracy.over([2.0, 1.0, 0.0]),
        "generic": Accuracy.over([50.0], per_client=False),
    }
    own = fairness(found)
    assert own is not None
    assert (own.worst_tenth, own.jain, own.worse_off) == (50.0, 1.0, {"initial": 1, "local_only": 2})
    mixed = fairness(found, "personal")
    assert mixed is not None
    assert mixed.worse_off == {"generic_as_personal": 2}
    assert fairness(found, "generic") is None
    assert fairness({}) is None


def test_the_history_tells_how_clients_are_spread() -> None:
    brief = Accuracy.over([0.0, 10.0, math.nan, 20.0, 30.0, 40.0]).in_brief()
    assert brief == {"mean": 20.0, "std": pytest.approx(200**0.5), "n": 5, "quantiles": [2.0, 10.0, 20.0, 30.0, 38.0]}
    assert "quantiles" not in Accuracy.over([50.0], per_client=False).in_brief()
    assert Accuracy.over([math.nan]).in_brief() == {"mean": None, "std": None, "n": 0}
