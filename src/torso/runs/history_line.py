"""A round as a line of history.jsonl says it: what does not apply is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torso.measure import Accuracy
from torso.runs.faults import FAULTS, REFUSED
from torso.runs.rounds import Round

_WHERE_ANY = ("missing", "staleness", "privacy")


def line_of(
    played: Round,
    seconds: float,
    accuracy: Mapping[str, Accuracy],
    replaced: tuple[str, ...],
    analyses: Any = None,
) -> dict[str, Any]:
    """`replaced`: what the engine had to do again; `analyses`: what was looked at in this round."""
    line: dict[str, Any] = {**asdict(played), **played.cost.as_json(), "seconds": round(seconds, 4)}
    del line["cost"]
    del line["why"]
    for name in _WHERE_ANY:
        if not line[name]:
            del line[name]
    if math.isnan(played.loss):
        line["loss"] = None
    if played.why:
        kinds = [kind for kind in (*FAULTS, *REFUSED) if kind in played.why.values()]
        line["faults"] = {name: [k for k, why in played.why.items() if why == name] for name in kinds}
    if replaced:
        line["replaced"] = replaced
    if accuracy:
        line["accuracy"] = {name: found.in_brief() for name, found in accuracy.items()}
    if analyses is not None:
        line["analyses"] = analyses
    return line
