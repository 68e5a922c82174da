"""The answer of `torso advise`: the method, its learning rates, its gain, and the table of the tournament."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torso.advise.arms import tuned
from torso.advise.candidates import FEDAVG, UNKNOWN_SPREAD
from torso.advise.choice import LEVEL, Gain, Outcome, best_guess, gain, ranked, reference
from torso.advise.tournament import TournamentRecord
from torso.advise.traits import Traits
from torso.config import Config
from torso.papers.experiments.estimate import duration
from torso.report.summary import counted

STAY = "stay with FedAvg and fine-tune"
STAGES = ("one part", "two parts", "three parts")


@dataclass(frozen=True)
class Answer:
    """The answer of `torso advise`."""

    course: TournamentRecord
    traits: Traits
    asked: Config  # the user's config
    share: float  # of the training samples that each part has
    cost: Mapping[str, float]  # "rounds" of FedAvg and "seconds" that the tournament took

    @cached_property
    def _guessed(self) -> tuple[Outcome | None, Gain | None]:
        return best_guess(self.course.fedavg, self.course.others)

    @property
    def best(self) -> Outcome | None:
        """The best method other than FedAvg; None if all others failed."""
        return self._guessed[0]

    @property
    def over_fedavg(self) -> Gain | None:
        """The gain of `best` over FedAvg with fine-tuning, drawn towards what the method is known to gain."""
        return self._guessed[1]

    @property
    def guess(self) -> Outcome:
        """The method with the best chances: `best`, or FedAvg if no other looks better. It may not be clearly
        better."""
        best, over = self._guessed
        return best if best is not None and over is not None and over.mean > 0 else self.course.fedavg

    @property
    def method(self) -> Outcome:
        """The method that is advised: the best guess if it is clearly better than FedAvg, else FedAvg."""
        return self.guess if self.over_fedavg is not None and self.over_fedavg.clear else self.course.fedavg

    @property
    def stay(self) -> bool:
        """Whether the advice is FedAvg, because nothing is clearly better than FedAvg with fine-tuning."""
        return self.method.arm.candidate is FEDAVG

    @property
    def over_alone(self) -> Gain | None:
        """The gain of the advised method over training alone; None if training alone was not run."""
        alone = self.course.alone
        return None if alone is None else gain(self.method.scores, alone.scores, UNKNOWN_SPREAD)

    @property
    def config(self) -> Config:
        """The user's config with the advised method and its rates."""
        return config_for(self.asked, self.method)

    def headline(self) -> str:
        """The advice in one line."""
        return f"Advice: {STAY}." if self.stay else f"Advice: {self.method.arm.name}."

    def lines(self) -> list[str]:
        """The answer in lines, as the terminal shows it below the table."""
        said = [*self.traits.lines(), "", self.headline(), f"  rates: {_listed(self.method)}"]
        if self.best is None:
            said.append("  every other method failed")
        elif not self.stay:
            said.append(f"  gain over FedAvg with fine-tuning: {self.over_fedavg}")
        elif self.guess is self.best:
            said.append(f"  best guess: {self.best.arm.name}, with {_listed(self.best)}")
            said.append(f"  its gain over FedAvg with fine-tuning: {self.over_fedavg}, which is not clear")
        else:
            said.append(f"  the best of the others is {self.best.arm.name}; its gain over FedAvg: {self.over_fedavg}")
        if self.over_alone is not None:
            high = self.over_alone.high
            better = ". Training alone looks better here" if high is not None and high < 0 else ""
            said.append(f"  gain of {self.method.arm.name} over training alone: {self.over_alone}{better}")
        return [*said, *self._how()]

    def _how(self) -> list[str]:
        """How the gains were measured, what it cost, and which candidates did not take part."""
        course, planned = self.course, self.asked.train.rounds
        seeds = counted(len(course.rungs), "seed")
        early = "" if course.rounds >= planned else f" You plan {planned} rounds, so this is an early estimate."
        said = [
            f"  Measured: accuracy of the clients' own models after {counted(course.rounds, 'round')}, with {seeds}, "
            f"each on another {100 * self.share:.0f} % of the training samples. Gains are paired by client and drawn "
            f"towards what a method gained elsewhere. Intervals: {100 * LEVEL:.0f} %.{early}",
            f"  cost: {self.cost['rounds']:.0f} rounds of FedAvg, {duration(self.cost['seconds'])}",
        ]
        if course.dropped:
            said.append(f"  not tried, because the budget was too small: {', '.join(course.dropped)}")
        said += [f"  cannot run with this config: {name}: {why}" for name, why in course.refused.items()]
        return said

    def table(self) -> list[dict[str, Any]]:
        """A row for each arm, in the order of how far it came: those on three parts first, and the best first."""
        course = self.course
        rows: list[dict[str, Any]] = []
        for number, outcomes in reversed(list(enumerate(course.rungs))):
            fedavg = reference(outcomes)
            assert fedavg is not None
            alone = [course.alone] if course.alone is not None and outcomes is course.rungs[-1] else []
            found = ranked([*outcomes, *alone], fedavg)
            rows += [_row(STAGES[number], course.rounds, one, over) for one, over in found]
            rows += [_row(STAGES[number], course.rounds, one, None) for one in outcomes if not any(one.scores)]
        return rows

    def as_json(self) -> dict[str, Any]:
        """The answer for programs."""
        course = self.course
        return {
            "advice": self.method.arm.name,
            "stay": self.stay,
            "sets": list(self.method.arm.candidate.sets),
            "rates": rates_of(self.method),
            "guess": {
                "method": self.guess.arm.name,
                "sets": list(self.guess.arm.candidate.sets),
                "rates": rates_of(self.guess),
            },
            "best": None if self.best is None else self.best.arm.name,
            "gain_over_fedavg": None if self.over_fedavg is None else self.over_fedavg.as_json(),
            "gain_over_alone": None if self.over_alone is None else self.over_alone.as_json(),
            "rounds": course.rounds,
            "planned_rounds": self.asked.train.rounds,
            "parts": len(course.rungs),
            "share": self.share,
            "clients": self.traits.as_json(),
            "tournament": self.table(),
            "left_out": {"no room": list(course.dropped), "cannot be run": dict(course.refused)},
            "cost": {name: round(value, 2) for name, value in self.cost.items()},
            "config": self.config.as_tree(),
        }

    def as_toml(self, guess: bool = False) -> str:
        """The text of a config for `torso run`, with the advised method or with the best guess."""
        said = f"Best guess: {self.guess.arm.name}." if guess else self.headline()
        method = self.guess if guess else self.method
        head = f"# Made by `torso advise`. {said} Train it: torso run FILE.toml\n"
        if method is self.best and self.over_fedavg is not None:
            head += f"# Gain over FedAvg with fine-tuning: {self.over_fedavg}\n"
        return f"{head}\n{config_for(self.asked, method).as_toml()}"


def rates_of(method: Outcome) -> dict[str, float]:
    """The learning rates of an outcome, and its epochs of fine-tuning, by config key."""
    tuning = method.tuning
    found: dict[str, float] = {"train.lr": method.arm.rate}
    if tuning.epochs:
        found |= {"personalize.lr": tuning.lr, "personalize.epochs": tuning.epochs}
    return found


def config_for(config: Config, method: Outcome) -> Config:
    """The user's config with the method and its rates."""
    found = config.but(*method.arm.candidate.sets, f"train.lr={method.arm.rate}")
    tuning = method.tuning
    if not (tuned(found) and tuning.epochs):
        return found
    return found.but(f"personalize.lr={tuning.lr}", f"personalize.epochs={tuning.epochs}")


def _listed(method: Outcome) -> str:
    return ", ".join(f"{key} = {value:g}" for key, value in rates_of(method).items())


def _row(stage: str, rounds: int, one: Outcome, over: float | None) -> dict[str, Any]:
    """The row of one arm. `over`: its gain over FedAvg in this stage; None if it failed."""
    ok = over is not None
    return {
        "stage": stage,
        "rounds": rounds,
        "method": one.arm.name,
        "lr": one.arm.rate,
        "fine_tuning_lr": one.tuning.lr if ok else None,
        "fine_tuning_epochs": one.tuning.epochs if ok else None,
        "accuracy": round(one.mean, 2) if ok else None,
        "to_fedavg": None if over is None else round(over, 2) + 0.0,  # + 0.0: never −0
        "clients": len(set().union(*one.scores)),
        "status": one.status,
    }


def columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the columns that a terminal shows."""
    shown = ("stage", "method", "lr", "fine_tuning", "accuracy", "to_fedavg")
    each = [{**row, "fine_tuning": _tuning(row)} for row in rows]
    return [{name: "" if row[name] is None else row[name] for name in shown} for row in each]


def _tuning(row: Mapping[str, Any]) -> str:
    """Fine-tuning as epochs × rate; "" if there is none."""
    epochs = row["fine_tuning_epochs"]
    return f"{epochs} × {row['fine_tuning_lr']:g}" if epochs else ""
