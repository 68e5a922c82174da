"""The candidates: methods that compete, and the learning rates that each of them tries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from torso.config import read_toml
from torso.errors import RequestError
from torso.methods import methods

FILE = Path(__file__).with_name("candidates.toml")
RATES = (0.03, 0.1, 0.3)  # learning rates of FedAvg; if the best is at an end, the next one beyond is tried
# the grid of learning rates, two per decade
EVERY_RATE = (0.0003, 0.001, 0.003, 0.01, *RATES, 1.0, 3.0)


UNKNOWN_SPREAD = 3.0  # points: about the root mean square of the candidates' gains (tests/advise/test_candidates.py)


class Candidate(BaseModel):
    """A method that may compete, with the learning rates that it tries.

    `gain` and `spread`: mean and standard deviation of its gain over FedAvg, in points of personal accuracy, in the
    settings where both are known. A method that nobody has measured gains 0, give or take `UNKNOWN_SPREAD`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sets: tuple[str, ...]  # KEY=VALUE of the config
    factors: tuple[float, ...] = ()  # rates as multiples of FedAvg's best rate
    rates: tuple[float, ...] = ()  # rates themselves
    gain: float = 0.0
    spread: float = UNKNOWN_SPREAD
    why: str = ""  # why it is a candidate

    def rates_beside(self, fedavg: float) -> tuple[float, ...]:
        """The rates to try, given FedAvg's best rate."""
        return tuple(dict.fromkeys((*self.rates, *(nearest_rate(fedavg * factor) for factor in self.factors))))


FEDAVG = Candidate(name="fedavg", sets=("method.name=fedavg",), factors=(1,), why="what others are compared with")
ALONE = Candidate(name="local-only", sets=("method.name=local-only",), factors=(1,), why="training alone")


@cache
def default_candidates() -> tuple[Candidate, ...]:
    """The default candidates (candidates.toml), the most promising first."""
    return tuple(Candidate(**entry) for entry in read_toml(FILE)["candidates"])


def candidates_named(names: Sequence[str]) -> tuple[Candidate, ...]:
    """The named candidates, or the default ones; raises RequestError for an unknown name."""
    known = {candidate.name: candidate for candidate in default_candidates()}
    found = []
    for name in dict.fromkeys(names):
        if name not in known:
            methods.look_up(name, "--methods")
        found.append(known.get(name) or Candidate(name=name, sets=(f"method.name={name}",), factors=(1.0, 3.0)))
    others = tuple(one for one in found if one.name not in (FEDAVG.name, ALONE.name))
    if names and not others:
        raise RequestError(
            f"--methods {','.join(names)}: fedavg and local-only always take part. Accepted: other methods"
        )
    return others or default_candidates()


def nearest_rate(rate: float) -> float:
    """The nearest rate of the grid."""
    return min(EVERY_RATE, key=lambda known: abs(known / rate - 1))


def rate_beyond(tried: Sequence[float], best: float) -> float | None:
    """The next rate of the grid beyond the best one, if the best is the smallest or largest of those tried; else
    None."""
    place = EVERY_RATE.index(best)
    if best == min(tried) and place > 0:
        return EVERY_RATE[place - 1]
    if best == max(tried) and place < len(EVERY_RATE) - 1:
        return EVERY_RATE[place + 1]
    return None


def untried_rate_near(tried: Sequence[float], best: float) -> float | None:
    """A rate next to the best one that has not been tried: first one beyond an end, then one in between; None if there
    is none."""
    place = EVERY_RATE.index(best)
    near_by = [rate_beyond(tried, best), *EVERY_RATE[max(place - 1, 0) : place + 2]]
    return next((rate for rate in near_by if rate is not None and rate not in tried), None)
