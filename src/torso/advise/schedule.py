"""The schedule of a tournament: how the budget is spent on three rungs.

A rung compares arms on one part of the samples; each rung has fewer arms than the one before. An arm is a method with a
learning rate. Costs are in rounds of FedAvg: a run costs `weight · rounds`. Measuring costs as many rounds as would
train on the same number of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CORE = 7  # arms that are planned first: the first three methods with all their rates
WIDER = 3  # further rates of the best methods, planned next; the rest of the budget is for other methods
PROMOTED = ((2, 4), (1, 2))  # (arms of FedAvg, arms of other methods) on the second part, and on the third
# a run has at least LEAST rounds and 1/PART of the planned ones: shorter runs do not predict the final accuracy
LEAST, PART = 2, 8


@dataclass(frozen=True)
class Prices:
    """Costs in rounds of FedAvg."""

    arms: tuple[float, ...]  # a round of each arm that is not FedAvg, the most promising first
    alone: float  # a round of training alone
    measuring: float  # measuring an arm on the first part
    again: float  # measuring an arm on a later part
    rates: int  # the number of FedAvg's rates that are tried


@dataclass(frozen=True)
class Schedule:
    """A plan of a tournament."""

    arms: int  # arms on the first rung that are not FedAvg's
    rounds: int  # of each run
    costs: tuple[float, ...]  # of each rung, at most

    @property
    def cost(self) -> float:
        return sum(self.costs)


def schedule(arms: int, rounds: int, prices: Prices) -> Schedule:
    """The schedule with this number of arms and rounds. Its first rung also has WIDER further rates of the best
    methods, its last one also has training alone."""
    weights = prices.arms[:arms]
    largest = max(weights)
    runs = prices.rates + arms + WIDER
    first = (prices.rates + sum(weights) + WIDER * largest) * rounds + runs * prices.measuring
    second, third = ((own + others * largest) * rounds + (own + others) * prices.again for own, others in PROMOTED)
    return Schedule(arms, rounds, (first, second, third + prices.alone * rounds + prices.again))


def shortest(most: int) -> int:
    """The smallest number of rounds of a run, if `most` are planned."""
    return min(most, max(LEAST, math.ceil(most / PART)))


def shapes(arms: int, most: int) -> list[tuple[int, int]]:
    """(arms, rounds of a run) of possible schedules, the best first: all rounds, shorter runs down to half of them,
    then fewer arms, then still shorter runs. Short runs are misleading, and so are few rates."""
    core, half = min(CORE, arms), math.ceil(most / 2)
    found = [(core, rounds) for rounds in range(most, half - 1, -1)]
    found += [(count, half) for count in range(core - 1, 0, -1)]
    return found + [(1, rounds) for rounds in range(half - 1, shortest(most) - 1, -1)]


def spread(budget: float, most: int, prices: Prices) -> Schedule | None:
    """The best schedule that the budget allows, with at most `most` rounds in a run. None: the budget is too small."""
    every = (schedule(arms, rounds, prices) for arms, rounds in shapes(len(prices.arms), most))
    return next((one for one in every if one.cost <= budget + 1e-9), None)


def smallest(most: int, prices: Prices) -> int:
    """The smallest budget, in rounds of FedAvg, for which there is a schedule."""
    return math.ceil(min(schedule(*shape, prices).cost for shape in shapes(len(prices.arms), most)) - 1e-9)
