"""Where does training begin?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torso.errors import RequestError
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
    rounds: float = 0.25
    lr: float = 0.001
    schedule: str = "const"

    def __post_init__(self) -> None:
        if not 0 < self.rounds <= 1:
            raise RequestError(
                f"method.start.rounds = {self.rounds} is not a share of train.rounds. Accepted: 0 < x <= 1"
            )
        if not self.lr > 0:
            raise RequestError(f"method.start.lr = {self.lr} is not a learning rate. Accepted: x > 0")
