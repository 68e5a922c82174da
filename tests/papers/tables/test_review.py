"""The statistics of a reproduced table, by hand."""

from __future__ import annotations

import math

import pytest

from torso.papers.pages.reproduction import overview
from torso.papers.tables.answers import Answer
from torso.papers.tables.review import VariantCount, rank_correlations, review, spearman, within_error, within_points

from ..lines import answer, failed, nothing, second


def test_numbers_within_three_points_are_counted() -> None:
    answers = [answer("A", (80.0,), 83.0), answer("B", (80.0,), 83.1), answer("C", (80.0,), None), nothing("D", 80.0)]
    assert within_points(answers) == (1, 2)
    bug = {**answer("E", (80.0,), 80.0), "not_comparable": "a mistake"}
    cost = {**answer("F", (80.0,), 80.0), "metric": "total_communication_GB"}
    assert within_points([*answers, bug, cost]) == (1, 2)


def published_over(line: Answer, over: str, std: float | None) -> Answer:
    return {**line, "published": {**line["published"], "std_over": over, "std": std}}


SEEDS = (79.0, 80.0, 81.0)  # mean 80, standard deviation 1


@pytest.mark.parametrize(
    ("over", "std", "reach"),
    [
        # one run: Student's 4.3027 at 2 degrees of freedom, times the root of 1 + 1/3
        ("clients", 7.0, 4.9683),
        ("", None, 4.9683),
        # a mean of five seeds of unknown spread: times the root of 1/3 + 1/5
        ("5 seeds", None, 3.1422),
        # of standard deviation 2: root of 1/3 + 4/5, Student at 1.1333² / (1/9/2 + 16/25/4) = 5.959 degrees
        ("5 seeds", 2.0, 2.6093),
    ],
)
def test_the_error_is_of_the_difference_to_a_number_that_varies_too(over: str, std: float | None, reach: float) -> None:
    lines = [published_over(answer("A", SEEDS, 80.0 + apart), over, std) for apart in (reach - 0.001, reach + 0.001)]
    assert within_error([*lines, answer("one seed", (80.0,), 80.0)]) == (1, 2)


def test_what_diverged_is_not_near_and_has_no_difference() -> None:
    lines = [
        answer("A", (80.0,), 81.0),
        failed(nothing("B", 80.0)),
        failed(answer("C", (80.0, 80.0), 80.0)),  # the seeds that are left would flatter
        failed(nothing("D", 80.0), why="the disk is full"),
    ]
    found = review(lines)
    assert (found.near, found.within, found.offset) == ((1, 3), (0, 0), -1.0)
    assert (found.numbers, found.measured, found.diverged) == (4, 3, 2)


def test_second_lines_count_for_themselves_alone() -> None:
    firsts = [answer(m, (70.0 + i,), 60.0 + i, local_epochs=1) for i, m in enumerate("ABC")]
    firsts[2]["not_comparable"] = "a mistake"
    seconds = [second(answer(m, (60.0 + i,), 60.0 + i, local_epochs=1)) for i, m in enumerate("ABC")]
    other = second(answer("A", (70.0,), 60.0, local_epochs=1), "before fine-tuning")
    alone, together = review(firsts), review([*firsts, *seconds, other])
    assert (together.near, together.offset, together.settings) == ((0, 2), 10.0, 0)
    assert (alone.numbers, alone.near, alone.offset) == (together.numbers, together.near, together.offset)
    assert together.second == [
        VariantCount("as the paper's code", 3, 3, 0),
        VariantCount("before fine-tuning", 0, 1, 0),
    ]
    assert "as the paper's code: 3 of 3 (main runs: 0)" in overview({"fedbabu/13": [*firsts, *seconds]})


def test_each_ratio_of_a_long_tail_is_ranked_by_itself() -> None:
    found = [answer(m, (float(i),), float(i), imbalance_ratio=10) for i, m in enumerate("ABC")]
    found += [answer(m, (-float(i),), float(i), imbalance_ratio=100) for i, m in enumerate("ABC")]
    assert sorted(rank_correlations(found).values()) == pytest.approx([-1.0, 1.0])


def test_spearman_by_hand() -> None:
    """Ranks 1 2 3 4 and 2 1 3 4: 1 − 6·2/(4·15) = 0.8; with ties the mean rank."""
    assert spearman([1, 2, 3, 4], [20, 10, 30, 40]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [5, 6, 7]) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_order_is_judged_within_a_setting() -> None:
    right = [answer(m, (float(i),), 10.0 * i) for i, m in enumerate("ABC")]
    wrong = [answer(m, (-float(i),), 10.0 * i, shards=5) for i, m in enumerate("ABC")]
    few = [answer("A", (1.0,), 1.0, shards=10)]
    found = rank_correlations([*right, *wrong, *few])
    assert sorted(found.values()) == pytest.approx([-1.0, 1.0])
    summary = review([*right, *wrong, *few, nothing("Z", 3.0)])
    assert (summary.numbers, summary.measured, summary.settings) == (8, 7, 2)
    assert summary.order == pytest.approx(0.0)
