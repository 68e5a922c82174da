"""Student's 95 % interval for the difference of two means over a few seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import variance

from torso.papers.tables.answers import Answer
from torso.report.statistics import student_quantile


@dataclass(frozen=True)
class VarianceOfMean:
    """The variance of a mean over seeds, and its degrees of freedom."""

    variance: float
    freedom: int


def variance_over_seeds(answer: Answer) -> VarianceOfMean | None:
    """The variance of our mean over seeds; None with one seed."""
    values = list(answer["ours"]["seeds"].values())
    return VarianceOfMean(variance(values) / len(values), len(values) - 1) if len(values) > 1 else None


def half_width(*variances: VarianceOfMean | None) -> float:
    """Half of the 95 % interval for a difference of independent means, with Welch and Satterthwaite's degrees of
    freedom. NaN if a variance is not known."""
    known = [each for each in variances if each is not None]
    if len(known) < len(variances):
        return math.nan
    total = sum(each.variance for each in known)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(each.variance**2 / each.freedom for each in known)
    return student_quantile(freedom) * math.sqrt(total)


def half_width_to_published(answer: Answer) -> float:
    """Half of the 95 % interval for ours minus published. NaN with one seed.

    If the paper's standard deviation is over seeds, it is used. If it is over clients, or not given, we assume that
    the published number varies over seeds as ours does."""
    mine = variance_over_seeds(answer)
    if mine is None:
        return math.nan
    theirs, seeds = answer["published"]["std"], seeds_of(answer)
    if theirs is not None and seeds > 1:
        return half_width(mine, VarianceOfMean(theirs**2 / seeds, seeds - 1))
    of_one = mine.variance * (mine.freedom + 1)
    return half_width(VarianceOfMean(mine.variance + of_one / seeds, mine.freedom))


def seeds_of(answer: Answer) -> int:
    """How many seeds the published mean is over ("5 seeds"); 1 if the paper does not say."""
    count, _, over = str(answer["published"]["std_over"]).partition(" ")
    return int(count) if over == "seeds" else 1
