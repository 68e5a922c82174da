"""The tournament: FedAvg's rate, the others at rates of their own, and a judgement on samples by which nothing was
chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from torso.advise.arms import EPOCHS, Entry, Stable
from torso.advise.budget import Budget, Until
from torso.advise.candidates import ALONE, FEDAVG, RATES, Candidate, beside, beyond
from torso.advise.choice import Arm, Outcome, at_both, challenger, further, leading, ranked, reference
from torso.advise.parts import Parts, parts_of
from torso.advise.schedule import AGAIN, WIDER, Prices, Schedule, judgement_for, smallest, spread
from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError, TorsoError
from torso.runs.events import Stop
from torso.runs.job import simulate
from torso.runs.run import Stopped

SECOND = 1000  # the second seed, beyond the first
PILOT = 2  # rounds by which minutes are turned into rounds
_BEYOND = 2  # rates of FedAvg that are tried at most beyond the ends
_PASSES = 1.5  # over fine-tuning, of an arm: the second rate is tried for some


class TooLittleTime(TorsoError):
    """Time was up before anything could be said."""


@dataclass
class Course:
    """What has happened: outcomes by stage, with their rounds, and who was judged at which seeds."""

    rates: list[Outcome] = field(default_factory=list)  # of FedAvg
    arms: list[Outcome] = field(default_factory=list)  # of the others
    again: list[Outcome] = field(default_factory=list)  # the best of both at two seeds, with the means of each client
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
        self._choosing_ends(plan.again.cost + plan.judgement.cost)
        self._rates(plan)
        self._others(plan, arms)
        self._again(plan)
        self._judgement()
        return self.course

    def _check(self) -> None:
        """Leave out candidates that this config or these data refuse; FedAvg has to be possible."""
        possible = []
        for candidate in (FEDAVG, ALONE, *self.candidates):
            config = self.stable.config_of(self.stable.first(Arm(candidate, RATES[0])), 1, self.config.run.seed)
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
        self._chosen_by_a([Arm(FEDAVG, RATES[1])], PILOT)

    def _prices(self, arms: Sequence[Arm]) -> Prices:
        weights = tuple(self.stable.weight(arm) for arm in arms)
        return Prices(
            arms=weights,
            pair=(1.0, max(weights)),
            alone=self.stable.weight(Arm(ALONE, 1.0)),
            measuring=self.stable.measuring(_PASSES * EPOCHS[-1]),
            judging=self.stable.measuring(EPOCHS[-1]),
            rates=len(RATES) + 1,  # one beyond an end
        )

    def _plan(self) -> tuple[Schedule, list[Arm]]:
        """The schedule, and the arms beside FedAvg's that it has room for, at the rates that they have if FedAvg's is
        the middle one. A method has all of its rates before the next one has any."""
        arms = [Arm(one, rate) for one in self.candidates for rate in one.rates_beside(RATES[1])]
        prices, most = self._prices(arms), self.config.train.rounds
        plan = spread(self.budget.left(), most, prices)
        if plan is None:
            raise RequestError(self._too_small(smallest(most, prices)))
        chosen = arms[: plan.count]
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
        """What comes after keeps its share of the time."""
        self.reserve = reserve
        ends, pace = self.budget.ends, self.budget.pace
        self.stop.at = None if ends is None or pace is None else ends - reserve * pace

    def _chosen_by_a(self, arms: Sequence[Arm], rounds: int) -> list[Outcome]:
        """The outcomes of runs, which are paid for. Ends with `Stopped` where the user asked for it."""
        began = self.budget.clock()
        found, _ = self.stable.compete(arms, rounds, self.config.run.seed, self.parts.choosing)
        self._pay(found, rounds, began, EPOCHS[-1])
        return found

    def _pay(self, found: Sequence[Outcome], rounds: int, began: float, epochs: int = 0) -> None:
        """For runs that have ended: `epochs` of each pass over fine-tuning, or as many as an outcome has."""
        if self.user.asked:
            raise Stopped("stopped; nothing was written")
        cost = sum(self.stable.weight(arm) * rounds for arm in {one.arm for one in found})
        passes = {(one.arm, one.tuning.lr): epochs or one.tuning.epochs for one in found if one.tuning.epochs}
        cost += sum(self.stable.measuring(each) for each in passes.values())
        self.budget.pay(cost, self.budget.clock() - began)

    def _rates(self, plan: Schedule) -> None:
        """FedAvg's rate."""
        course, rounds = self.course, plan.rates.rounds
        self.stage, course.rounds["rates"] = "rates", rounds
        course.rates = self._chosen_by_a([Arm(FEDAVG, rate) for rate in RATES], rounds)
        for _ in range(_BEYOND):
            best, tried = self._reference(course.rates), [one.arm.rate for one in course.rates]
            if (rate := beyond(tried, best.arm.rate)) is None:
                break
            course.rates += self._chosen_by_a([Arm(FEDAVG, rate)], rounds)
        course.fedavg = self._reference(course.rates)

    def _reference(self, outcomes: Sequence[Outcome]) -> Outcome:
        found = reference(outcomes)
        if found is not None:
            return found
        if outcomes:
            raise TorsoError(f"FedAvg failed at every rate: {outcomes[0].status}")
        raise TooLittleTime(f"time was up before FedAvg was measured. Give more than --minutes {self.budget.minutes:g}")

    def _others(self, plan: Schedule, planned: Sequence[Arm]) -> None:
        """The others at rates of their own; then rates next to the best ones, as far as the budget goes."""
        course, rounds = self.course, plan.arms.rounds
        assert course.fedavg is not None
        self.stage, course.rounds["tournament"] = "tournament", rounds
        rate = course.fedavg.arm.rate
        those = dict.fromkeys(arm.candidate for arm in planned)
        arms = [Arm(one, each) for one in those for each in one.rates_beside(rate)][: plan.count]
        course.arms = self._chosen_by_a(arms, rounds)
        price = plan.arms.cost / len(plan.arms.weights)
        for _ in range(WIDER + 1):
            more = further(self._order(), arms, beside)
            if more is None or self.budget.left() < self.reserve + price:
                break
            arms.append(more)
            course.arms += self._chosen_by_a([more], rounds)

    def _again(self, plan: Schedule) -> None:
        """The best ones at a second seed: a rate that is best at one seed may be at the edge of what is stable."""
        course, rounds = self.course, plan.again.rounds
        assert course.fedavg is not None
        self.stage, course.rounds["two seeds"] = "second seed", rounds
        self._choosing_ends(plan.judgement.cost)
        rates = ranked(course.rates, course.fedavg)
        some = [*leading(rates, AGAIN[0]), *leading(self._order(), AGAIN[1])]
        entries = [Entry(one.arm, one.tuning.lr, (one.tuning.epochs,)) for one in some]
        began, seed = self.budget.clock(), self.config.run.seed + SECOND
        found, _ = self.stable.judge(entries, rounds, seed, self.parts.choosing)
        self._pay(found, rounds, began)
        course.again = at_both(some, found)
        course.fedavg = reference(course.again) or course.fedavg
        course.best = challenger(ranked(course.again, course.fedavg)) or challenger(self._order())
        course.alone = Arm(ALONE, course.fedavg.arm.rate)  # on the leaderboard its best rate is FedAvg's

    def _order(self) -> list[tuple[Outcome, float]]:
        assert self.course.fedavg is not None
        return ranked(self.course.arms, self.course.fedavg)

    def _judgement(self) -> None:
        course, fedavg, best = self.course, self.course.fedavg, self.course.best
        assert fedavg is not None
        assert course.alone is not None
        self.stage, self.stop.at = "judgement", self.budget.ends
        pair = [fedavg, *([best] if best is not None else [])]
        prices = self._prices([one.arm for one in pair])
        plan = judgement_for(self.budget.left(), self.config.train.rounds, prices)
        course.rounds["judgement"] = plan.rounds
        entries = [Entry(one.arm, one.tuning.lr, (one.tuning.epochs,)) for one in pair]
        alone = Entry(course.alone, self.stable.rates_of_tuning[0], EPOCHS[:1])
        for number, data in enumerate(self.parts.judging[: plan.seeds]):
            seed, began = self.config.run.seed + 1 + number, self.budget.clock()
            found, ended = self.stable.judge([*entries, *([] if number else [alone])], plan.rounds, seed, data)
            self._pay(found, plan.rounds, began)
            if ended:
                course.judged[seed] = found
        if not course.judged:
            raise TooLittleTime(
                "time was up before the choice could be judged, so nothing is advised. Give more than "
                f"--minutes {self.budget.minutes:g}"
            )
