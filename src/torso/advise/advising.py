"""`advise`: hold the tournament for a config and return the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torso.advise.answer import Answer
from torso.advise.budget import Budget
from torso.advise.candidates import candidates_named
from torso.advise.tournament import Tournament
from torso.advise.traits import traits_of
from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError
from torso.runs.events import Stop
from torso.runs.job import data_of

OWN = ("method", "train.lr", "personalize.lr", "personalize.epochs", "personalize.sweep", "data.validation", "measure")
"""Config keys that the tournament sets itself, so the user may not."""


def check_sets(sets: Sequence[str]) -> None:
    """Refuse keys that the tournament chooses itself."""
    for said in sets:
        key = said.partition("=")[0].strip()
        if any(key == own or key.startswith(f"{own}.") for own in OWN):
            raise RequestError(
                f"--set {said!r}: torso advise chooses {key} itself. Accepted: other keys, such as train.rounds. To "
                "name the methods that compete: --methods A,B"
            )


def advise(
    config: Config,
    *,
    rounds: float | None = None,
    minutes: float | None = None,
    methods: Sequence[str] = (),
    federation: Federation | None = None,
    stop: Stop | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Hold a tournament on the config's clients, or on those of `federation`, and return its answer.

    The budget is in rounds of FedAvg or in minutes. With rounds, the answer is reproducible; with minutes, it depends
    on the speed of the machine. `told` gets a line of progress from time to time."""
    candidates, budget = candidates_named(methods), Budget(rounds, minutes)
    config = config.model_copy(update={"data": config.data.model_copy(update={"validation": 0.0})})
    federation = federation or data_of(config)
    held = Tournament(config, federation, candidates, budget, stop or Stop(), told)
    course = held.hold()
    traits = traits_of(federation.class_counts.cpu().numpy())
    cost = {"rounds": budget.spent, "seconds": budget.seconds}
    return Answer(course, traits, config, held.parts.share, cost)
