"""The tournament: FedAvg's rate, heats, a final, and a judgement on samples by which nothing was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from torso.advise.arms import FINAL, HEATS, Look, Stable
from torso.advise.budget import Budget, Until
from torso.advise.candidates import ALONE, FEDAVG, RATES, Candidate, beyond, near
from torso.advise.choice import Arm, Outcome, challenger, finalists, ranked, reference
from torso.advise.parts import Parts, parts_of
from torso.advise.schedule import Schedule, judgement_for, spread
from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError, TorsoError
from torso.runs.events import Stop
from torso.runs.job import simulate
from torso.runs.run import Stopped

PILOT = 2  # rounds by which minutes are turned into rounds
_WIDER = 2  # rates that are tried at most beyond the ends of FedAvg's


class TooLittleTime(TorsoError):
    """Time was up before anything could be said."""


@dataclass
class Course:
    """What has happened: outcomes by stage, with their rounds, and who was judged at which seeds."""

    rates: list[Outcome] = field(default_factory=list)  # of FedAvg
    heats: list[Outcome] = field(default_factory=list)
    final: list[Outcome] = field(default_factory=list)
    judged: dict[int, list[Outcome]] = field(default_factory=dict)  # by seed
    rounds: dict[str, int] = field(default_factory=dict)  # by stage
    refused: dict[str, str] = field(default_factory=dict)  # candidate → why it cannot be run
    dropped: tuple[str, ...] = ()  # candidates for which the budget had no room
    fedavg: Outcome | None = None
    best: Outcome | None = None  # the challenger
    alone: Arm | None = None


@dataclass
class Tournament:
    """One config, its clients in parts, and a budget."""

    config: Config
    federation: Federation
    candidates: Sequence[Candidate]
    budget: Budget
    user: Stop
    told: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self.parts: Parts = parts_of(self.federation, self.config.run.seed)
        self.stop = Until(self.user, self.budget.clock)
        self.stage = ""
        roster = self.parts.choosing.roster
        size = float(np.median(roster.sizes_of(roster.training)))
        told = lambda text: self.told(f"{self.stage}: {text}")  # noqa: E731
        self.stable = Stable(self.config, self.stop, told, roster.training, size)
        self.course = Course()

    def hold(self) -> Course:
        self._check()
        if self.budget.timed:
            self._pilot()
        plan, arms = self._plan()
        reserve = plan.seeds * plan.judgement.cost
        self._choosing_ends(reserve)
        self._rates(plan)
        self._heats(plan, arms)
        self._final(plan)
        self._judgement()
        return self.course

    def _check(self) -> None:
        """Leave out candidates that this config or these data refuse; FedAvg has to be possible."""
        possible = []
        for candidate in (FEDAVG, ALONE, *self.candidates):
            config = self.stable.config_of(Arm(candidate, RATES[0]), 1, self.config.run.seed, HEATS)
            try:
                simulate(config, self.parts.choosing)
            except RequestError as error:
                if candidate in (FEDAVG, ALONE):
                    raise
                self.course.refused[candidate.name] = str(error)
            else:
                possible.append(candidate)
        self.candidates = possible[2:]
        if not self.candidates:
            first, why = next(iter(self.course.refused.items()))
            raise RequestError(f"no candidate can be run with this config. {first}: {why}")

    def _pilot(self) -> None:
        self.stage = "pilot"
        self.stop.at = self.budget.ends
        self._runs([Arm(FEDAVG, RATES[1])], PILOT, self.config.run.seed, HEATS, self.parts.choosing)

    def _plan(self) -> tuple[Schedule, list[Arm]]:
        """The schedule, and the arms beside FedAvg's that it has room for. Rates are multiples of FedAvg's until that
        is known: each candidate has its first rate before any has its second."""
        most = max(len(candidate.factors) for candidate in self.candidates)
        arms: list[Arm] = []
        for place in range(most):
            arms += [Arm(one, one.factors[place]) for one in self.candidates if place < len(one.factors)]
        weights = [self.stable.weight(arm) for arm in arms]
        judged = [1.0, self.stable.weight(Arm(ALONE, 1.0)), max(weights)]
        measuring = self.stable.measuring(HEATS), self.stable.measuring(FINAL)
        given = self.config.train.rounds, weights, judged, measuring, len(RATES) + 1  # one beyond an end
        plan = spread(self.budget.left(), *given)
        if plan is None:
            raise RequestError(self._too_small(smallest(*given)))
        chosen = arms[: plan.arms]
        left = {arm.name for arm in arms} - {arm.name for arm in chosen}
        self.course.dropped = tuple(one.name for one in self.candidates if one.name in left)
        return plan, chosen

    def _too_small(self, rounds: int) -> str:
        what = f"the smallest tournament costs {rounds} rounds of FedAvg"
        if not self.budget.timed:
            return f"--rounds {self.budget.rounds:g} is too small for these data: {what}. Accepted: {rounds} or more"
        pace = self.budget.pace or 0.0
        needs = math.ceil((rounds * pace / 0.85 + self.budget.seconds) / 6) / 10
        return (
            f"--minutes {self.budget.minutes:g} is too short for these data: {what}, each about {pace:.2g} s here. "
            f"Accepted: {needs:g} or more"
        )

    def _choosing_ends(self, reserve: float) -> None:
        """The judgement keeps its share of the time."""
        ends, pace = self.budget.ends, self.budget.pace
        self.stop.at = None if ends is None or pace is None else ends - reserve * pace

    def _runs(self, arms: Sequence[Arm], rounds: int, seed: int, look: Look, data: Federation) -> list[Outcome]:
        """The outcomes of runs, which are paid for. Ends with `Stopped` where the user asked for it."""
        began = self.budget.clock()
        found, _ = self.stable.run(arms, rounds, seed, look, data)
        if self.user.asked:
            raise Stopped("stopped; nothing was written")
        ended = {(one.arm.name, one.arm.rate) for one in found}
        there = [arm for arm in arms if (arm.name, arm.rate) in ended]
        cost = sum(self.stable.weight(arm) * rounds + self.stable.measuring(look) for arm in there)
        self.budget.pay(cost, self.budget.clock() - began)
        return found

    def _rates(self, plan: Schedule) -> None:
        """FedAvg's rate, in runs as long as the final: short ones favour other rates."""
        course, rounds = self.course, plan.rates.rounds
        self.stage, course.rounds["rates"] = "rates", rounds
        course.rates = self._chosen_by_a([Arm(FEDAVG, rate) for rate in RATES], rounds, FINAL)
        for _ in range(_WIDER):
            best, tried = self._reference(course.rates), [one.arm.rate for one in course.rates]
            if (further := beyond(tried, best.arm.rate)) is None:
                break
            course.rates += self._chosen_by_a([Arm(FEDAVG, further)], rounds, FINAL)
        course.fedavg = self._reference(course.rates)

    def _chosen_by_a(self, arms: Sequence[Arm], rounds: int, look: Look) -> list[Outcome]:
        return self._runs(arms, rounds, self.config.run.seed, look, self.parts.choosing)

    def _heats(self, plan: Schedule, arms: Sequence[Arm]) -> None:
        course, rounds = self.course, plan.heats.rounds
        assert course.fedavg is not None
        self.stage, course.rounds["heats"] = "heats", rounds
        rate = course.fedavg.arm.rate
        others = list(dict.fromkeys(Arm(arm.candidate, near(rate * arm.rate)) for arm in arms))
        course.heats = self._chosen_by_a(others, rounds, HEATS)

    def _reference(self, outcomes: Sequence[Outcome]) -> Outcome:
        found = reference(outcomes)
        if found is not None:
            return found
        if outcomes:
            raise TorsoError(f"FedAvg failed at every rate: {outcomes[0].status}")
        raise TooLittleTime(f"time was up before FedAvg was measured. Give more than --minutes {self.budget.minutes:g}")

    def _final(self, plan: Schedule) -> None:
        course, rounds = self.course, plan.final.rounds
        assert course.fedavg is not None
        self.stage, course.rounds["final"] = "final", rounds
        arms = finalists(ranked(course.heats, course.fedavg), len(plan.final.weights))
        course.final = self._chosen_by_a(arms, rounds, FINAL)
        course.best = challenger(ranked(course.final, course.fedavg))
        if course.best is None:  # time was up: the heats have to do
            course.best = challenger(ranked(course.heats, course.fedavg))
        course.alone = Arm(ALONE, course.fedavg.arm.rate)  # on the leaderboard its best rate is FedAvg's

    def _judgement(self) -> None:
        course, fedavg, best = self.course, self.course.fedavg, self.course.best
        assert fedavg is not None
        assert course.alone is not None
        self.stage, self.stop.at = "judgement", self.budget.ends
        arms = list(dict.fromkeys([fedavg.arm, course.alone, *([best.arm] if best else [])]))
        look = Look(FINAL.epochs, FINAL.clients, generic=True)
        weights = [self.stable.weight(arm) for arm in arms]
        most, measuring = self.config.train.rounds, self.stable.measuring(FINAL)
        plan, seeds = judgement_for(self.budget.left(), most, weights, measuring)
        rounds = plan.rounds
        course.rounds["judgement"] = rounds
        for number in range(seeds):
            seed = self.config.run.seed + 1 + number
            found = self._runs(arms, rounds, seed, look, self.parts.judging)
            if {one.arm for one in found} >= set(arms):
                course.judged[seed] = found
        if not course.judged:
            raise TooLittleTime(
                "time was up before the choice could be judged, so nothing is advised. Give more than "
                f"--minutes {self.budget.minutes:g}"
            )


def smallest(
    most: int, weights: Sequence[float], judged: Sequence[float], measuring: tuple[float, float], rates: int
) -> int:
    """The smallest budget, in rounds of FedAvg, for which there is a schedule."""
    low, high = 0, 1
    while spread(high, most, weights, judged, measuring, rates) is None:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        found = spread(middle, most, weights, judged, measuring, rates)
        low, high = (middle, high) if found is None else (low, middle)
    return high
