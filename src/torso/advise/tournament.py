"""The tournament: FedAvg and the candidates, each at several rates, on part A; the best of them on part B with another
seed; the best of these on part C with a third seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from torso.advise.arms import EPOCHS, ArmRunner, Entry
from torso.advise.budget import Budget, Until
from torso.advise.candidates import ALONE, FEDAVG, RATES, Candidate, rate_beyond, untried_rate_near
from torso.advise.choice import Arm, Outcome, Scores, joined, next_arm, promoted, ranked, reference
from torso.advise.parts import Parts, parts_of
from torso.advise.schedule import PROMOTED, Prices, Schedule, smallest, spread
from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError, TorsoError
from torso.runs.events import Stop
from torso.runs.job import simulate
from torso.runs.run import Stopped

PILOT = 2  # rounds of the run that measures the pace, to convert minutes into rounds
_BEYOND = 2  # at most this many rates of FedAvg are tried beyond the ends
_PASSES = 2.3  # mean number of fine-tunings of an arm: the third rate is tried for some arms only


class TooLittleTime(TorsoError):
    """Time was up before there was an answer."""


@dataclass
class TournamentRecord:
    """What has happened in a tournament."""

    rungs: list[list[Outcome]] = field(default_factory=list)  # by part; scores are of this part and all before
    rounds: int = 0  # of each run
    alone: Outcome | None = None
    refused: dict[str, str] = field(default_factory=dict)  # candidate → why it cannot be run
    dropped: tuple[str, ...] = ()  # candidates for which the budget had no room

    @property
    def fedavg(self) -> Outcome:
        """FedAvg at its best rate, judged on all parts."""
        found = reference(self.rungs[-1])
        assert found is not None
        return found

    @property
    def others(self) -> list[Outcome]:
        """The outcomes that were compared with FedAvg on the last part."""
        return [one for one in self.rungs[-1] if one.arm.candidate is not FEDAVG]


@dataclass
class Tournament:
    """A tournament on one config and its clients, within a budget. `hold` runs it."""

    config: Config
    federation: Federation
    candidates: Sequence[Candidate]
    budget: Budget
    user: Stop  # set when the user stops the command
    told: Callable[[str], None] = lambda text: None  # gets lines of progress

    def __post_init__(self) -> None:
        self.parts: Parts = parts_of(self.federation, self.config.run.seed)
        self.stop = Until(self.user, self.budget.clock)
        self.stage = ""
        roster = self.parts.federations[0].roster
        size = float(np.median(roster.sizes_of(roster.training)))
        told = lambda text: self.told(f"{self.stage}: {text}")  # noqa: E731
        self.stable = ArmRunner(self.config, self.stop, told, roster.training, size)
        self.course = TournamentRecord()

    def hold(self) -> TournamentRecord:
        """Run the tournament."""
        self._check()
        if self.budget.timed:
            self._pilot()
        plan = self._plan()
        self.course.rounds = plan.rounds
        self._first(plan)
        for number in range(1, len(plan.costs)):
            self._next(number, plan)
        if len(self.course.rungs) < 2:
            raise TooLittleTime(
                "time was up before methods could be compared twice, so no method is advised. Give more than "
                f"--minutes {self.budget.minutes:g}"
            )
        return self.course

    def _check(self) -> None:
        """Leave out candidates that cannot run with this config and data. If FedAvg or training alone cannot, raise."""
        possible = []
        for candidate in (FEDAVG, ALONE, *self.candidates):
            config = self.stable.config_of(self.stable.first(Arm(candidate, RATES[0])), 1, self.config.run.seed)
            try:
                simulate(config, self.parts.federations[0])
            except RequestError as error:
                if candidate in (FEDAVG, ALONE):
                    raise
                self.course.refused[candidate.name] = str(error)
            else:
                possible.append(candidate)
        self.candidates = possible[2:]
        if not self.candidates:
            first, why = next(iter(self.course.refused.items()))
            raise RequestError(f"no candidate can run with this config. {first}: {why}")

    def _pilot(self) -> None:
        """Measure the pace with a short run of FedAvg."""
        self.stage = "pilot"
        self.stop.at = self.budget.ends
        self._chosen_by_a([Arm(FEDAVG, RATES[1])], PILOT)

    def _prices(self, arms: Sequence[Arm]) -> Prices:
        return Prices(
            arms=tuple(self.stable.weight(arm) for arm in arms),
            alone=self.stable.weight(Arm(ALONE, 1.0)),
            measuring=self.stable.measuring(_PASSES * EPOCHS[-1]),
            again=self.stable.measuring(EPOCHS[-1]),
            rates=len(RATES) + 1,  # one beyond an end
        )

    def _plan(self) -> Schedule:
        """The schedule for the rest of the budget; raises RequestError if the budget is too small. Costs are estimated
        with the arms for FedAvg's middle rate, because its best rate is not known yet."""
        arms = self._arms(RATES[1])
        prices, most = self._prices(arms), self.config.train.rounds
        plan = spread(self.budget.left(), most, prices)
        if plan is None:
            raise RequestError(self._too_small(smallest(most, prices)))
        return plan

    def _arms(self, fedavg: float) -> list[Arm]:
        """The arms of the candidates for this best rate of FedAvg, the most promising candidate first. A candidate's
        rates stand together, so it has all of its rates before the next one has any."""
        return [Arm(one, rate) for one in self.candidates for rate in one.rates_beside(fedavg)]

    def _too_small(self, rounds: int) -> str:
        """The message for a budget below `rounds` rounds of FedAvg, in the unit that the user gave."""
        what = f"the smallest tournament costs {rounds} rounds of FedAvg"
        if not self.budget.timed:
            return f"--rounds {self.budget.rounds:g} is too small for these data: {what}. Accepted: {rounds} or more"
        pace = self.budget.pace or 0.0
        needs = math.ceil((rounds * pace / 0.85 + self.budget.seconds) / 6) / 10
        return (
            f"--minutes {self.budget.minutes:g} is too short for these data: {what}, each about {pace:.2g} s here. "
            f"Accepted: {needs:g} or more"
        )

    def _ends(self, reserve: float) -> None:
        """Set the time at which runs stop, so that `reserve` rounds of the budget remain for what comes after."""
        ends, pace = self.budget.ends, self.budget.pace
        self.stop.at = None if ends is None or pace is None else ends - reserve * pace

    def _chosen_by_a(self, arms: Sequence[Arm], rounds: int) -> list[Outcome]:
        """The outcomes of arms on part A. Their cost is counted; raises `Stopped` if the user asked to stop."""
        began = self.budget.clock()
        found, _ = self.stable.compete(arms, rounds, self.config.run.seed, self.parts.federations[0])
        self._pay(found, rounds, began, EPOCHS[-1])
        return found

    def _pay(self, found: Sequence[Outcome], rounds: int, began: float, epochs: int = 0) -> None:
        """Count the cost of runs that have ended. `epochs`: of each fine-tuning; 0: as many as its outcome has."""
        if self.user.asked:
            raise Stopped("stopped; nothing was written")
        cost = sum(self.stable.weight(arm) * rounds for arm in {one.arm for one in found})
        passes = {(one.arm, one.tuning.lr): epochs or one.tuning.epochs for one in found if one.tuning.epochs}
        cost += sum(self.stable.measuring(each) for each in passes.values())
        self.budget.pay(cost, self.budget.clock() - began)

    def _first(self, plan: Schedule) -> None:
        """Part A: FedAvg's rates, then the planned arms. With the rest of the budget: rates next to the best ones, and
        further methods."""
        reserve = sum(plan.costs[1:])
        self._ends(reserve)
        self.stage = "part A"
        found = self._rates(plan.rounds)
        arms = self._arms(self._reference(found).arm.rate)
        tried, waiting = arms[: plan.arms], arms[plan.arms :]
        found += self._chosen_by_a(tried, plan.rounds)
        while True:
            order = [pair for pair in ranked(found, self._reference(found)) if pair[0].arm.candidate is not FEDAVG]
            more = next_arm(order, tried, untried_rate_near) or (waiting.pop(0) if waiting else None)
            if more is None or self.budget.left() < reserve + self._price(more, plan.rounds):
                break
            waiting = [arm for arm in waiting if arm != more]
            tried.append(more)
            found += self._chosen_by_a([more], plan.rounds)
        ran = {arm.name for arm in tried}
        self.course.dropped = tuple(one.name for one in self.candidates if one.name not in ran)
        self.course.rungs.append(found)

    def _price(self, arm: Arm, rounds: int) -> float:
        """The largest cost of an arm on part A: with both rates of fine-tuning."""
        return self.stable.weight(arm) * rounds + 2 * self.stable.measuring(EPOCHS[-1])

    def _rates(self, rounds: int) -> list[Outcome]:
        """FedAvg's outcomes at its rates, and at rates beyond if the best one is at an end."""
        found = self._chosen_by_a([Arm(FEDAVG, rate) for rate in RATES], rounds)
        for _ in range(_BEYOND):
            tried = [one.arm.rate for one in found]
            if (rate := rate_beyond(tried, self._reference(found).arm.rate)) is None:
                break
            found += self._chosen_by_a([Arm(FEDAVG, rate)], rounds)
        return found

    def _reference(self, outcomes: Sequence[Outcome]) -> Outcome:
        """FedAvg's best outcome; raises if there is none."""
        found = reference(outcomes)
        if found is not None:
            return found
        if outcomes:
            raise TorsoError(f"FedAvg failed at every rate: {outcomes[0].status}")
        raise TooLittleTime(f"time was up before FedAvg was measured. Give more than --minutes {self.budget.minutes:g}")

    def _next(self, number: int, plan: Schedule) -> None:
        """Part B or C: the best arms, with another seed, because a rate that is best at one seed may be unstable at
        another. Where FedAvg fails at its rate here, its next best rate takes part. The last part also has training
        alone, at FedAvg's rate: on the leaderboard that is its best rate."""
        last = number + 1 == len(plan.costs)
        self._ends(sum(plan.costs[number + 1 :]))
        self.stage = f"part {'ABC'[number]}"
        found: list[Outcome] = []
        while True:
            some = promoted(self.course.rungs[-1], *PROMOTED[number - 1])
            ran = {one.arm for one in found}
            entries = [Entry(one.arm, one.tuning.lr, (one.tuning.epochs,)) for one in some if one.arm not in ran]
            if last:
                rate = self.course.fedavg.arm.rate
                entries.append(Entry(Arm(ALONE, rate), self.stable.rate_of_tuning, EPOCHS[:1]))
            began, data = self.budget.clock(), self.parts.federations[number]
            more, ended = self.stable.again(entries, plan.rounds, self.config.run.seed + number, data)
            self._pay(more, plan.rounds, began)
            found += more
            both = joined(some, found)
            if not ended:
                return
            if reference(both) is not None:
                break
            stable = self._without_failed(found)
            if reference(stable) is None:
                return
            self.course.rungs[-1] = stable
        before: tuple[Scores, ...] = ({},) * len(self.course.rungs)
        alone = [one for one in more if one.arm.candidate is ALONE and one.scores]
        self.course.alone = replace(alone[0], scores=(*before, *alone[0].scores)) if alone else None
        self.course.rungs.append(both)

    def _without_failed(self, found: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of the last part without the arms that have failed since."""
        failed = {one.arm for one in found if not any(one.scores)}
        return [one for one in self.course.rungs[-1] if one.arm not in failed]
