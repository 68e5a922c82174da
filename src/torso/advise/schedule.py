"""How a budget is spent: FedAvg's rate, a tournament of arms, the best ones at a second seed, a judgement.

An arm is a method with a learning rate. Costs are counted in rounds of FedAvg: a run costs `weight · rounds`, and
measuring costs as many rounds as train on as many samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CORE = 6  # arms that are to run before any run gets all rounds: the first three methods, with their rates
WIDER = 2  # further rates of the best methods
AGAIN = (2, 2)  # at a second seed: rates of FedAvg, and arms
LEAST, PART = 2, 8  # rounds of a run at least, and this part of all: less says nothing of the end
JUDGED = 0.5  # of the budget at most, for the judgement


@dataclass(frozen=True)
class Rung:
    """Runs of so many rounds; `weights`: what a round of each costs."""

    weights: tuple[float, ...]
    rounds: int
    measuring: float  # of one run

    @property
    def cost(self) -> float:
        return sum(self.weights) * self.rounds + len(self.weights) * self.measuring


@dataclass(frozen=True)
class Judgement:
    """FedAvg and the challenger at each seed, and training alone at the first."""

    pair: Rung
    alone: Rung
    seeds: int

    @property
    def rounds(self) -> int:
        return self.pair.rounds

    @property
    def cost(self) -> float:
        return self.seeds * self.pair.cost + self.alone.cost


@dataclass(frozen=True)
class Schedule:
    """`rates`, `arms` and `again` have as many rounds, so that they can be compared. The last `WIDER` of `arms` are
    further rates of the best methods."""

    rates: Rung
    arms: Rung
    again: Rung
    judgement: Judgement

    @property
    def count(self) -> int:
        """How many of the arms compete, from the first."""
        return len(self.arms.weights) - WIDER

    @property
    def cost(self) -> float:
        return self.rates.cost + self.arms.cost + self.again.cost + self.judgement.cost


@dataclass(frozen=True)
class Prices:
    """What things cost. `arms`: a round of each arm beside FedAvg's, the most promising first; `pair`: of FedAvg and
    the challenger; `alone`: of training alone; `measuring`: an arm, `judging`: what is judged; `rates`: of FedAvg that
    are tried."""

    arms: tuple[float, ...]
    pair: tuple[float, float]
    alone: float
    measuring: float
    judging: float
    rates: int


def shortest(most: int) -> int:
    """Rounds of a run at least."""
    return min(most, max(LEAST, math.ceil(most / PART)))


def shapes(arms: int, most: int) -> list[tuple[int, int]]:
    """(arms, rounds of each), the most wanted first: all arms with all rounds, fewer arms, shorter runs of the first
    ones down to half the rounds, fewer of these, still shorter ones. Short runs mislead, and so do few rates."""
    core, half = min(CORE, arms), math.ceil(most / 2)
    found = [(count, most) for count in range(arms, core - 1, -1)]
    found += [(core, rounds) for rounds in range(most - 1, half - 1, -1)]
    found += [(count, half) for count in range(core - 1, 0, -1)]
    return found + [(1, rounds) for rounds in range(half - 1, shortest(most) - 1, -1)]


def spread(budget: float, most: int, prices: Prices) -> Schedule | None:
    """The schedule for a budget, with `most` rounds in a run at most. None: the budget is too small."""
    judgement = judgement_for(budget * JUDGED, most, prices)
    for count, rounds in shapes(len(prices.arms), most):
        weights, mean = prices.arms[:count], sum(prices.arms[:count]) / count
        arms = Rung((*weights, *(mean,) * WIDER), rounds, prices.measuring)
        again = Rung((*(1.0,) * AGAIN[0], *(mean,) * AGAIN[1]), rounds, prices.judging)
        found = Schedule(Rung((1.0,) * prices.rates, rounds, prices.measuring), arms, again, judgement)
        if found.cost <= budget + 1e-9:
            return found
    return None


def judgement_for(budget: float, most: int, prices: Prices) -> Judgement:
    """Two seeds of all rounds where that fits, else one of as many as do."""

    def judged(rounds: int, seeds: int) -> Judgement:
        return Judgement(
            Rung(prices.pair, rounds, prices.judging), Rung((prices.alone,), rounds, prices.judging), seeds
        )

    if judged(most, 2).cost <= budget:
        return judged(most, 2)
    fits = math.floor((budget - 3 * prices.judging) / (sum(prices.pair) + prices.alone))
    return judged(min(most, max(fits, LEAST)), 1)


def smallest(most: int, prices: Prices) -> int:
    """The smallest budget, in rounds of FedAvg, for which there is a schedule."""
    low, high = 0, 1
    while spread(high, most, prices) is None:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spread(middle, most, prices) is None else (low, middle)
    return high
