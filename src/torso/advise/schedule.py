"""How a budget is spent: FedAvg's rate, heats of many arms for a few rounds, a final of a few for more, a judgement.

An arm is a method with a learning rate. Costs are counted in rounds of FedAvg: a run costs `weight · rounds`, and
measuring costs as many rounds as train on as many samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

KEEP = 4  # of so many arms one goes on, and trains for so many times the rounds
LEAST, PART = 2, 8  # rounds of a run at least, and of a heat this part of all: less says nothing of the end
JUDGED = 0.5  # of the budget at most, for the judgement


@dataclass(frozen=True)
class Rung:
    """Runs of so many rounds; `weights`: what a round of each arm costs."""

    weights: tuple[float, ...]
    rounds: int
    measuring: float  # of one arm

    @property
    def cost(self) -> float:
        return sum(self.weights) * self.rounds + len(self.weights) * self.measuring


@dataclass(frozen=True)
class Schedule:
    """`rates` and `final` have as many rounds, so that FedAvg need not be run again in the final. `arms`: how many of
    the arms compete, from the first."""

    rates: Rung
    heats: Rung
    final: Rung
    judgement: Rung
    seeds: int

    @property
    def arms(self) -> int:
        return len(self.heats.weights)

    @property
    def cost(self) -> float:
        return self.rates.cost + self.heats.cost + self.final.cost + self.seeds * self.judgement.cost


def survivors(arms: int) -> int:
    """How many arms of the heats are in the final."""
    return math.ceil(arms / KEEP)


def shortest(most: int) -> int:
    """Rounds of a heat at least; a small budget has fewer arms instead."""
    return min(most, max(LEAST, math.ceil(most / PART)))


def spread(
    budget: float,
    most: int,
    weights: Sequence[float],
    judged: Sequence[float],
    measuring: tuple[float, float],
    rates: int,
) -> Schedule | None:
    """The schedule for a budget: as many rounds as it allows, `most` of them at most.

    `weights`: of all arms beside FedAvg's, the most promising first. `judged`: of the runs that are judged.
    `measuring`: what it costs in the heats, and elsewhere. `rates`: of FedAvg. None: the budget is too small."""
    early, late = measuring
    judgement, seeds = judgement_for(budget * JUDGED, most, judged, late)
    for arms in range(len(weights), 0, -1):
        for rounds in range(most, shortest(most) - 1, -1):
            heats, longer = Rung(tuple(weights[:arms]), rounds, early), min(most, KEEP * rounds)
            mean = sum(heats.weights) / arms
            final = Rung((mean,) * survivors(arms), longer, late)
            found = Schedule(Rung((1.0,) * rates, longer, late), heats, final, judgement, seeds)
            if found.cost <= budget + 1e-9:
                return found
    return None


def judgement_for(budget: float, most: int, weights: Sequence[float], measuring: float) -> tuple[Rung, int]:
    """Two seeds of all rounds where that fits, else one of as many as do."""
    whole = Rung(tuple(weights), most, measuring)
    if 2 * whole.cost <= budget:
        return whole, 2
    fits = math.floor((budget - len(weights) * measuring) / sum(weights))
    return Rung(tuple(weights), min(most, max(fits, LEAST)), measuring), 1
