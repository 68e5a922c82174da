"""Where does training begin?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from torso.kinds import CountOrZero, Fraction, NotNegative
from torso.registry import Registry


class Start(Protocol):
    """A marker: what a start means is carried out by runs/stages.py, before the first round."""


starts: Registry[type[Start]] = Registry("method.start")


@starts.register("fresh")
@dataclass(frozen=True)
class Fresh:
    """Random weights, the same for everybody."""


@starts.register("finished")
@dataclass(frozen=True)
class Finished:
    """Another method's finished model, then a share of the rounds at a rate of its own (LG-FedAvg, spec 4.3 and 7.4).

    `run` names a finished run folder to begin from; without one the other `method` is trained first, in the same run,
    for `first` rounds. Where `first`, `lr` or `schedule` are not given (0 or ""), those of the run are used.
    """

    method: str = "fedavg"
    run: str = ""
    first: CountOrZero = 0
    rounds: Fraction = 0.25
    lr: NotNegative = 0.001
    schedule: str = "const"


@starts.register("class-means")
@dataclass(frozen=True)
class ClassMeans:
    """The head begins as the class means of everybody's features, each of length one (FedNCM, spec 7.1).

    `rounds` is the share of train.rounds that follows: 0 for FedNCM, 1 for FedNCM+FT."""

    rounds: Annotated[float, Field(ge=0, le=1)] = 0.0
    metric: Literal["direction", "euclidean"] = "direction"
