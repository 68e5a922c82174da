"""The length of honest uploads without an attack, from which `clip` and `radius` are chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import ClassVar

from torch import Tensor

from torso.learn.stacked import client_norms
from torso.nets import Tensors
from torso.papers.experiments.result_files import Record, write_record
from torso.papers.robust.cells import Plan
from torso.runs.run import run
from torso.server.robust import minus
from torso.server.rules import Mean

FILE = "lengths.json"


@dataclass(frozen=True)
class Watching(Mean):
    """The mean as a server rule that also notes the length of every upload."""

    needs_each: ClassVar[bool] = True
    seen: list[float] = field(default_factory=list)

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        self.seen.extend(client_norms(minus(uploads, old)).tolist())
        return super().combine(state, old, uploads, weights)


def upload_length(plan: Plan, method: str) -> Record:
    """The median length of the uploads of the first rounds, without an attack, at seed 0, rounded to two digits."""
    trial = plan.plain(method)
    config, watching, rounds = trial.config, Watching(), plan.evidence.lengths
    short = config.train.model_copy(update={"rounds": rounds, "schedule": "const"})
    quiet = config.measure.model_copy(update={"names": (), "every": 0})
    run(config.model_copy(update={"method": config.method.but(server=watching), "train": short, "measure": quiet}))
    return {"length": float(f"{median(watching.seen):.2g}"), "rounds": rounds, "key": trial.key}


def known_lengths(folder: Path) -> dict[str, Record]:
    """Method → its measured length, from lengths.json."""
    path = folder / FILE
    found: dict[str, Record] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def with_lengths(plan: Plan, folder: Path, say: Callable[[str], None]) -> Plan:
    """The plan with the lengths of all its methods. Lengths that the folder does not have are measured and written."""
    known = known_lengths(folder)
    for method in plan.methods:
        if plan.evidence.methods[method].alone or not plan.needs_lengths:
            continue
        now = {"rounds": plan.evidence.lengths, "key": plan.plain(method).key}
        if {**known.get(method, {}), **now} != known.get(method):
            known[method] = upload_length(plan, method)
            say(f"{method}: uploads are {known[method]['length']} long (median of {plan.evidence.lengths} rounds)")
            write_record(folder / FILE, known)
    return replace(plan, lengths={method: found["length"] for method, found in known.items()})
