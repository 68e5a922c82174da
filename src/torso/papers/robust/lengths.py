"""How long honest uploads are without an attack: what `clip` and `radius` are chosen by."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from torch import Tensor

from torso.nets import Tensors
from torso.papers.robust.cells import Cell, Plan
from torso.papers.robust.definition import MEAN, NONE
from torso.runs.run import run
from torso.server.robust import lengths, less
from torso.server.rules import Mean


@dataclass(frozen=True)
class Watching(Mean):
    """The mean, which notes the length of every upload."""

    needs_each: ClassVar[bool] = True
    seen: list[float] = field(default_factory=list)

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        self.seen.extend(lengths(less(uploads, old)).tolist())
        return super().combine(state, old, uploads, weights)


def upload_length(plan: Plan, method: str, rounds: int) -> float:
    """The median over the uploads of the first rounds, without an attack, at seed 0."""
    config = plan.trial(Cell(method, NONE, MEAN), 0).config
    watching = Watching()
    short = config.train.model_copy(update={"rounds": rounds, "schedule": "const"})
    quiet = config.measure.model_copy(update={"names": (), "every": 0})
    run(
        config.model_copy(
            update={"method": config.method.but(server=watching), "train": short, "measure": quiet},
        )
    )
    return median(watching.seen)
