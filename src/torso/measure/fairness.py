"""Who gains and who loses: the spread of accuracy over clients, as pure functions of per-client percentages.

None is a client without a value; it is left out. Where no client has one, the answer is NaN.
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
"""What a client could have had → what it has: on the same samples, weighed alike."""


def _known(values: Values) -> NDArray[np.float64]:
    return np.array([value for value in values if value is not None and not math.isnan(value)], dtype=np.float64)


def worst(values: Values, share: float = 0.1) -> float:
    """The mean of the ⌈share · n⌉ lowest values: of the worst tenth of the clients, at least of one."""
    known = np.sort(_known(values))
    count = max(math.ceil(share * len(known) - 1e-9), 1)
    return float(known[:count].mean()) if len(known) else math.nan


def quantiles(values: Values, at: Sequence[float] = QUANTILES) -> tuple[float, ...]:
    """With linear interpolation between clients, as NumPy has it."""
    known = _known(values)
    return tuple(np.quantile(known, at).tolist()) if len(known) else (math.nan,) * len(at)


def worse_off(values: Values, than: Values, margin: float = 0.0) -> int:
    """How many clients have less than they could have had, by more than `margin` points; both must be known."""
    pairs = [(a, b) for a, b in zip(values, than, strict=True) if a is not None and b is not None]
    return sum(a < b - margin for a, b in pairs)


@dataclass(frozen=True)
class Group:
    """Clients whose quantity, as their size, is between `low` and `high`; `clients` of them have a value."""

    low: float
    high: float
    clients: int
    mean: float
    worst: float  # the lowest value in it


def by_group(values: Values, quantity: Sequence[float], groups: int = 4) -> tuple[Group, ...]:
    """The clients' values in groups of equal numbers of clients, by a quantity that each of them has: its size, its
    number of classes. Clients of equal quantity are in one group, so there may be fewer groups, and none is empty."""
    pairs = sorted((q, v) for q, v in zip(quantity, values, strict=True) if v is not None and not math.isnan(v))
    cuts = [pairs[math.ceil(len(pairs) * step / groups) - 1][0] for step in range(1, groups + 1)] if pairs else []
    found, last = [], -math.inf
    for cut in dict.fromkeys(cuts):
        inside = [(q, v) for q, v in pairs if last < q <= cut]
        kept = [v for _, v in inside]
        found.append(Group(inside[0][0], inside[-1][0], len(kept), float(np.mean(kept)), min(kept)))
        last = cut
    return tuple(found)


def group_gap(groups: Sequence[Group]) -> float:
    """The mean of the best group less that of the worst; NaN where there is none."""
    means = [group.mean for group in groups]
    return max(means) - min(means) if means else math.nan


def jain(values: Values) -> float:
    """Jain's index (Σx)² / (n·Σx²): 1 where all are equal, 1/n where one has everything; NaN where nobody has any."""
    known = _known(values)
    squares = float((known**2).sum())
    return float(known.sum()) ** 2 / (len(known) * squares) if squares else math.nan


@dataclass(frozen=True)
class Fairness:
    """`worse_off`: by what a client could have had instead, how many clients have less."""

    worst_tenth: float
    quantiles: tuple[float, ...]  # at QUANTILES
    jain: float
    worse_off: Mapping[str, int]


def fairness(accuracy: Mapping[str, Accuracy], name: str = "personalized") -> Fairness | None:
    """The spread of one accuracy over clients, and who is worse off than with something else that was measured; None
    where it was not measured, or is not of clients."""
    found = accuracy.get(name)
    if found is None or not found.clients:
        return None
    others = {other: accuracy[other] for other, own in COMPARED.items() if own == name and other in accuracy}
    losers = {other: worse_off(found.clients, theirs.clients) for other, theirs in others.items()}
    return Fairness(worst(found.clients), quantiles(found.clients), jain(found.clients), losers)
