"""How sure a difference of two means over seeds is: Student's interval, for a handful of seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import variance

from torso.papers.tables.answers import Answer
from torso.report.statistics import student_quantile


@dataclass(frozen=True)
class VarianceOfMean:
    """The variance of a mean, and the degrees of freedom with which it is known."""

    variance: float
    freedom: int


def variance_over_seeds(answer: Answer) -> VarianceOfMean | None:
    """Of our mean; one seed has none."""
    values = list(answer["ours"]["seeds"].values())
    return VarianceOfMean(variance(values) / len(values), len(values) - 1) if len(values) > 1 else None


def half_width(*spreads: VarianceOfMean | None) -> float:
    """Half of the 95 % interval of a difference of independent means, degrees of freedom by Welch and Satterthwaite;
    NaN where a spread is not known."""
    known = [spread for spread in spreads if spread is not None]
    if len(known) < len(spreads):
        return math.nan
    total = sum(spread.variance for spread in known)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(spread.variance**2 / spread.freedom for spread in known)
    return student_quantile(freedom) * math.sqrt(total)


def half_width_to_published(answer: Answer) -> float:
    """Half of the 95 % interval of ours minus published; NaN for one seed.

    A paper's standard deviation counts where it is over seeds. Where it is over clients, or there is none, the
    published number is taken to vary from seed to seed as ours does: a mean of so many seeds, or one run."""
    mine = variance_over_seeds(answer)
    if mine is None:
        return math.nan
    theirs, seeds = answer["published"]["std"], seeds_of(answer)
    if theirs is not None and seeds > 1:
        return half_width(mine, VarianceOfMean(theirs**2 / seeds, seeds - 1))
    of_one = mine.variance * (mine.freedom + 1)
    return half_width(VarianceOfMean(mine.variance + of_one / seeds, mine.freedom))


def seeds_of(answer: Answer) -> int:
    """Of how many seeds a published number is the mean: "5 seeds"; one run where the paper does not say."""
    count, _, over = str(answer["published"]["std_over"]).partition(" ")
    return int(count) if over == "seeds" else 1
