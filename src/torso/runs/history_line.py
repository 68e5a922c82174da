"""The line of a round in history.jsonl. Entries that do not apply are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torso.measure import Accuracy
from torso.runs.faults import FAULTS, REFUSED
from torso.runs.rounds import Round

_LEFT_OUT_IF_EMPTY = ("missing", "staleness", "privacy")


def line_of(
    played: Round,
    seconds: float,
    accuracy: Mapping[str, Accuracy],
    replaced: tuple[str, ...],
    analyses: Any = None,
) -> dict[str, Any]:
    """The line as JSON values. `replaced`: messages about work that was done again; `analyses`: those of this round."""
    line: dict[str, Any] = {**asdict(played), **played.cost.as_json(), "seconds": round(seconds, 4)}
    del line["cost"]
    del line["why"]
    for name in _LEFT_OUT_IF_EMPTY:
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
