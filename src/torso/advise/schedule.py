"""How a budget is spent: three rungs, of which each compares fewer arms on another part of the samples.

An arm is a method with a learning rate. Costs are counted in rounds of FedAvg: a run costs `weight · rounds`, and
measuring costs as many rounds as train on as many samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CORE = 7  # arms that are planned: the first three methods, with their rates
WIDER = 3  # further rates of the best methods, which come next; what is left is for other methods
GO_ON = ((2, 4), (1, 2))  # arms of FedAvg and others on the second part and on the third
LEAST, PART = 2, 8  # rounds of a run at least, and this part of all: less says nothing of the end


@dataclass(frozen=True)
class Prices:
    """What things cost. `arms`: a round of each arm beside FedAvg's, the most promising first; `alone`: of training
    alone; `measuring`: an arm on the first part, `again`: on the others; `rates`: of FedAvg that are tried."""

    arms: tuple[float, ...]
    alone: float
    measuring: float
    again: float
    rates: int


@dataclass(frozen=True)
class Schedule:
    """So many arms beside FedAvg's compete at first, in runs of so many rounds. `costs`: of each rung at most."""

    arms: int
    rounds: int
    costs: tuple[float, ...]

    @property
    def cost(self) -> float:
        return sum(self.costs)


def schedule(arms: int, rounds: int, prices: Prices) -> Schedule:
    """The first rung has further rates of the best methods, too; the last one has training alone."""
    weights = prices.arms[:arms]
    largest, runs = max(weights), prices.rates + arms + WIDER
    first = (prices.rates + sum(weights) + WIDER * largest) * rounds + runs * prices.measuring
    second, third = ((own + others * largest) * rounds + (own + others) * prices.again for own, others in GO_ON)
    return Schedule(arms, rounds, (first, second, third + prices.alone * rounds + prices.again))


def shortest(most: int) -> int:
    """Rounds of a run at least."""
    return min(most, max(LEAST, math.ceil(most / PART)))


def shapes(arms: int, most: int) -> list[tuple[int, int]]:
    """(arms, rounds of each), the most wanted first: all rounds, shorter runs down to half of them, fewer arms, still
    shorter runs. Short runs mislead, and so do few rates."""
    core, half = min(CORE, arms), math.ceil(most / 2)
    found = [(core, rounds) for rounds in range(most, half - 1, -1)]
    found += [(count, half) for count in range(core - 1, 0, -1)]
    return found + [(1, rounds) for rounds in range(half - 1, shortest(most) - 1, -1)]


def spread(budget: float, most: int, prices: Prices) -> Schedule | None:
    """The schedule for a budget, with `most` rounds in a run at most. None: the budget is too small."""
    every = (schedule(arms, rounds, prices) for arms, rounds in shapes(len(prices.arms), most))
    return next((one for one in every if one.cost <= budget + 1e-9), None)


def smallest(most: int, prices: Prices) -> int:
    """The smallest budget, in rounds of FedAvg, for which there is a schedule."""
    return math.ceil(min(schedule(*shape, prices).cost for shape in shapes(len(prices.arms), most)) - 1e-9)
