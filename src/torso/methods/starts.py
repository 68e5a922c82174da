"""Where does training begin?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torso.kinds import Fraction, Positive
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
    """Another method's finished model, then a share of the rounds at a rate of its own (LG-FedAvg, spec 4.3).

    `run` names a finished run folder to begin from; without one the other `method` is trained first, in the same run.
    """

    method: str = "fedavg"
    run: str = ""
    rounds: Fraction = 0.25
    lr: Positive = 0.001
    schedule: str = "const"
