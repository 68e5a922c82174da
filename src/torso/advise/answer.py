"""The answer: which method, with which rates, how much it gains, and what the tournament saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torso.advise.arms import EPOCHS, tuned
from torso.advise.candidates import ALONE, FEDAVG
from torso.advise.choice import SURE, Gain, Outcome, Tuning, advised, gain, ranked
from torso.advise.tournament import Course
from torso.advise.traits import Traits
from torso.config import Config
from torso.papers.experiments.estimate import duration
from torso.report.summary import counted

STAY = "stay with FedAvg and fine-tune"


@dataclass(frozen=True)
class Answer:
    """What `torso advise` says."""

    traits: Traits
    method: Outcome  # with its rate and its fine-tuning
    challenger: Outcome | None
    over_fedavg: Gain | None  # of what is advised; where that is FedAvg, of the challenger
    over_alone: Gain | None  # of what is advised; None where that is training alone
    course: Course
    config: Config  # of what is advised
    planned: int  # rounds of the user's config
    share: float  # of the training samples, in each part
    cost: Mapping[str, float]

    @property
    def stay(self) -> bool:
        """Whether nothing is clearly better than FedAvg with fine-tuning."""
        return self.method.arm.candidate is FEDAVG

    @property
    def fine_tunes(self) -> bool:
        return self.method.tuning.epochs > 0

    @property
    def rates(self) -> dict[str, float]:
        found: dict[str, float] = {"train.lr": self.method.arm.rate}
        if self.fine_tunes:
            tuning = self.method.tuning
            found |= {"personalize.lr": tuning.lr, "personalize.epochs": tuning.epochs}
        return found

    def headline(self) -> str:
        if self.stay:
            return f"Advice: {STAY}."
        return f"Advice: {'train alone (local-only)' if self.method.arm.candidate is ALONE else self.method.arm.name}."

    def lines(self) -> list[str]:
        rates = ", ".join(f"{key} = {value:g}" for key, value in self.rates.items())
        said = [*self.traits.lines(), "", self.headline(), f"  rates: {rates}"]
        named = self.challenger if self.stay else self.method
        if named is not None and self.over_fedavg is not None:
            name = named.arm.name
            clearly = "" if self.over_fedavg.clear else ": not clearly better"
            said.append(f"  {name} over FedAvg with fine-tuning: {self.over_fedavg}{clearly}")
        elif named is not None:
            said.append(f"  {named.arm.name} was the best of the others, and failed when it was judged")
        if self.over_alone is not None:
            said.append(f"  {self.method.arm.name} over training alone: {self.over_alone}")
        return [*said, *self._how()]

    def _how(self) -> list[str]:
        course = self.course
        rounds, seeds = course.rounds["judgement"], len(course.judged)
        far = "" if rounds >= self.planned else f" You plan {self.planned} rounds, so this is an early look."
        said = [
            f"  judged after {counted(rounds, 'round')}, at {counted(seeds, 'seed')}, by the accuracy of the clients' "
            f"own models; {100 * SURE:.0f} % interval over clients, paired by client; at each seed on another "
            f"{100 * self.share:.0f} % of the training samples, by which nothing was chosen.{far}",
            f"  cost: {self.cost['rounds']:.0f} rounds of FedAvg, {duration(self.cost['seconds'])}",
        ]
        if course.dropped:
            said.append(f"  no room in the budget for a rate of: {', '.join(course.dropped)}")
        said += [f"  cannot be run here: {name}: {why}" for name, why in course.refused.items()]
        return said

    def table(self) -> list[dict[str, Any]]:
        """A row for each arm, the best first: those of two seeds, the others, and FedAvg's."""
        course, fedavg = self.course, self.course.fedavg
        assert fedavg is not None
        rows: list[dict[str, Any]] = []
        for stage, outcomes in (("two seeds", course.again), ("tournament", course.arms), ("rates", course.rates)):
            rows += [_row(stage, course.rounds.get(stage, 0), one, over) for one, over in ranked(outcomes, fedavg)]
            rows += [_failed(stage, course.rounds.get(stage, 0), one) for one in outcomes if not one.scores]
        return rows

    def as_json(self) -> dict[str, Any]:
        course = self.course
        return {
            "advice": self.method.arm.name,
            "stay": self.stay,
            "sets": list(self.method.arm.candidate.sets),
            "rates": self.rates,
            "challenger": None if self.challenger is None else self.challenger.arm.name,
            "gain_over_fedavg": None if self.over_fedavg is None else self.over_fedavg.as_json(),
            "gain_over_alone": None if self.over_alone is None else self.over_alone.as_json(),
            "judged": {
                "rounds": course.rounds["judgement"],
                "seeds": list(course.judged),
                "share": self.share,
                "personal": {name: round(value, 4) for name, value in self._judged("mean").items()},
                "generic": {name: round(value, 4) for name, value in self._judged("generic").items()},
            },
            "planned_rounds": self.planned,
            "clients": self.traits.as_json(),
            "tournament": self.table(),
            "left_out": {"no room": list(course.dropped), "cannot be run": dict(course.refused)},
            "cost": {name: round(value, 2) for name, value in self.cost.items()},
            "config": self.config.as_tree(),
        }

    def _judged(self, what: str) -> dict[str, float]:
        """Means over seeds."""
        found: dict[str, list[float]] = {}
        for outcomes in self.course.judged.values():
            for one in outcomes:
                value = getattr(one, what)
                if one.scores and value is not None:
                    found.setdefault(one.arm.name, []).append(value)
        return {name: fmean(values) for name, values in found.items()}

    def as_toml(self) -> str:
        head = (
            f"# Made by `torso advise`. {self.headline()} Train it: torso run FILE.toml\n"
            f"# Over FedAvg with fine-tuning: {self.over_fedavg}; over training alone: {self.over_alone}\n\n"
        )
        return head + self.config.as_toml()


def answer_of(
    course: Course, config: Config, traits: Traits, share: float, tuned_alone: float, cost: Mapping[str, float]
) -> Answer:
    """Apply the choice rule to what a tournament saw. `tuned_alone`: personalize.lr of training alone."""
    fedavg, best = course.fedavg, course.best
    assert fedavg is not None
    assert course.alone is not None

    def judged(ours: Outcome, theirs: Outcome) -> Gain | None:
        return gain(_at(course, ours), _at(course, theirs))

    alone = Outcome(course.alone, Tuning(tuned_alone, EPOCHS[0]), {})
    method = advised(fedavg, best, alone, judged)
    named = best if method is fedavg else method
    return Answer(
        traits=traits,
        method=method,
        challenger=best,
        over_fedavg=None if named is None else judged(named, fedavg),
        over_alone=None if method is alone else judged(method, alone),
        course=course,
        config=config_for(config, method),
        planned=config.train.rounds,
        share=share,
        cost=cost,
    )


def _at(course: Course, chosen: Outcome) -> list[Mapping[int, float]]:
    """The scores of what was chosen, at each judged seed; empty where the run failed."""
    return [next((one.scores for one in found if one.arm == chosen.arm), {}) for found in course.judged.values()]


def config_for(config: Config, method: Outcome) -> Config:
    """The user's config with the method and its rates."""
    found = config.but(*method.arm.candidate.sets, f"train.lr={method.arm.rate}")
    tuning = method.tuning
    if not (tuned(found) and tuning.epochs):
        return found
    return found.but(f"personalize.lr={tuning.lr}", f"personalize.epochs={tuning.epochs}")


def _row(stage: str, rounds: int, one: Outcome, over: float) -> dict[str, Any]:
    return {
        "stage": stage,
        "rounds": rounds,
        "method": one.arm.name,
        "lr": one.arm.rate,
        "fine_tuning_lr": one.tuning.lr,
        "fine_tuning_epochs": one.tuning.epochs,
        "accuracy": round(one.mean, 2),
        "to_fedavg": round(over, 2) + 0.0,  # no −0
        "clients": len(one.scores),
        "status": one.status,
    }


def _failed(stage: str, rounds: int, one: Outcome) -> dict[str, Any]:
    empty = dict.fromkeys(("fine_tuning_lr", "fine_tuning_epochs", "accuracy", "to_fedavg"))
    who = {"stage": stage, "rounds": rounds, "method": one.arm.name, "lr": one.arm.rate}
    return {**who, **empty, "clients": 0, "status": one.status}


def columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a terminal shows them."""
    shown = ("stage", "method", "lr", "fine_tuning", "accuracy", "to_fedavg")
    each = [{**row, "fine_tuning": _tuning(row)} for row in rows]
    return [{name: "" if row[name] is None else row[name] for name in shown} for row in each]


def _tuning(row: Mapping[str, Any]) -> str:
    """Epochs × rate."""
    epochs = row["fine_tuning_epochs"]
    return f"{epochs} × {row['fine_tuning_lr']:g}" if epochs else ""
