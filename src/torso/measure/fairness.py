"""Fairness: how accuracy is spread over clients, as pure functions of the clients' percentages.

A client without a value has None and is left out. If no client has a value, the result is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torso.measure.base import QUANTILES, Accuracy

Values = Sequence[float | None]

COMPARED = {"initial": "personalized", "local_only": "personalized", "generic_as_personal": "personal"}
"""Measures of alternatives → the measure that they are compared with, on the same samples with the same weights."""


def _known(values: Values) -> NDArray[np.float64]:
    """The values of the clients that have one."""
    return np.array([value for value in values if value is not None and not math.isnan(value)], dtype=np.float64)


def worst(values: Values, share: float = 0.1) -> float:
    """The mean of the ⌈share · n⌉ lowest values, at least one: with 0.1, of the worst tenth of the clients."""
    known = np.sort(_known(values))
    count = max(math.ceil(share * len(known) - 1e-9), 1)
    return float(known[:count].mean()) if len(known) else math.nan


def quantiles(values: Values, at: Sequence[float] = QUANTILES) -> tuple[float, ...]:
    """Quantiles over clients, with linear interpolation as in NumPy."""
    known = _known(values)
    return tuple(np.quantile(known, at).tolist()) if len(known) else (math.nan,) * len(at)


def worse_off(values: Values, than: Values, margin: float = 0.0) -> int:
    """The number of clients whose value is lower than in `than` by more than `margin` points; both must be known."""
    pairs = [(a, b) for a, b in zip(values, than, strict=True) if a is not None and b is not None]
    return sum(a < b - margin for a, b in pairs)


@dataclass(frozen=True)
class Group:
    """The values of clients with a similar quantity, such as their number of samples."""

    low: float  # smallest and largest quantity in the group
    high: float
    clients: int  # clients with a value
    mean: float
    worst: float  # the lowest value


def by_group(values: Values, quantity: Sequence[float], groups: int = 4) -> tuple[Group, ...]:
    """The clients' values in groups of equally many clients, by a quantity of each client, such as its number of
    samples or classes. Clients with the same quantity are in one group, so there may be fewer groups. No group is
    empty."""
    pairs = sorted((q, v) for q, v in zip(quantity, values, strict=True) if v is not None and not math.isnan(v))
    if not pairs:
        return ()
    cuts = [pairs[math.ceil(len(pairs) * step / groups) - 1][0] for step in range(1, groups + 1)]
    found = []
    last = -math.inf
    for cut in dict.fromkeys(cuts):
        inside = [(q, v) for q, v in pairs if last < q <= cut]
        kept = [v for _, v in inside]
        found.append(Group(inside[0][0], inside[-1][0], len(kept), float(np.mean(kept)), min(kept)))
        last = cut
    return tuple(found)


def group_gap(groups: Sequence[Group]) -> float:
    """The mean of the best group minus that of the worst; NaN without groups."""
    means = [group.mean for group in groups]
    return max(means) - min(means) if means else math.nan


def jain(values: Values) -> float:
    """Jain's index (Σx)² / (n·Σx²): 1 if all values are equal, 1/n if only one is not 0; NaN if all are 0."""
    known = _known(values)
    squares = float((known**2).sum())
    return float(known.sum()) ** 2 / (len(known) * squares) if squares else math.nan


@dataclass(frozen=True)
class Fairness:
    """The spread of one accuracy over clients."""

    worst_tenth: float  # mean over the worst tenth of the clients
    quantiles: tuple[float, ...]  # at QUANTILES
    jain: float  # Jain's index
    worse_off: Mapping[str, int]  # by alternative: the number of clients that the alternative serves better


def fairness(accuracy: Mapping[str, Accuracy], name: str = "personalized") -> Fairness | None:
    """The fairness of one accuracy, compared with the alternatives that were measured too; None if the accuracy was not
    measured, or has no values of clients."""
    found = accuracy.get(name)
    if found is None or not found.clients:
        return None
    others = {other: accuracy[other] for other, own in COMPARED.items() if own == name and other in accuracy}
    losers = {other: worse_off(found.clients, theirs.clients) for other, theirs in others.items()}
    return Fairness(worst(found.clients), quantiles(found.clients), jain(found.clients), losers)
