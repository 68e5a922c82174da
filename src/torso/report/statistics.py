"""The difference between two methods with its uncertainty: paired differences with a Student interval.

Both methods had the same clients with the same seeds, so differences are taken client by client. A client's differences
are averaged over seeds first; the interval is Student's over clients. So it shows how precisely these clients, at these
seeds, determine the mean difference. A measure without clients (one generic model) is paired by seed instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torso.report.records import Scores

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """Ours minus theirs in percentage points, with its 95% interval. A single pair has no interval."""

    mean: float
    low: float | None
    high: float | None
    pairs: int
    over: str  # what is paired: "clients" or "seeds"
    by_seed: tuple[float, ...]  # the mean difference at each seed

    @property
    def clear(self) -> bool:
        """Whether the interval does not contain zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Refused:
    """The reason why there is no difference."""

    reason: str


def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """Half the width of a mean's Student interval, in standard errors. `freedom`: degrees of freedom."""
    from scipy.special import stdtrit  # slow to import, and not every command needs it

    return float(stdtrit(freedom, (1 + level) / 2))


def student_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float | None, float | None]:
    """(mean, low, high): the mean and its Student interval. A single value has no interval."""
    found = np.asarray(values, dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return mean, None, None
    half = student_quantile(len(found) - 1, level) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return mean, mean - half, mean + half


def paired_difference(ours: Mapping[int, Scores], theirs: Mapping[int, Scores]) -> Difference | Refused:
    """The difference of two methods' scores, given by seed. Clients are paired by number; a client that only one side
    measured is left out."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return Refused("no seed in common")
    if all(ours[seed].clients and theirs[seed].clients for seed in seeds):
        return _over_clients([(ours[seed].clients, theirs[seed].clients) for seed in seeds])
    by_seed = tuple(ours[seed].mean - theirs[seed].mean for seed in seeds)
    mean, low, high = student_interval(by_seed)
    return Difference(mean, low, high, len(by_seed), "seeds", by_seed)


def _over_clients(pairs: Sequence[tuple[tuple[float, ...], tuple[float, ...]]]) -> Difference | Refused:
    counts = {len(side) for pair in pairs for side in pair}
    if len(counts) > 1:
        return Refused(f"different numbers of clients: {', '.join(map(str, sorted(counts)))}")
    apart = np.array([np.subtract(mine, other) for mine, other in pairs])  # [seeds, clients]
    measured = ~np.isnan(apart)
    seen = measured.any(axis=0)
    if not seen.any():
        return Refused("no client was measured on both sides")
    each = np.nansum(apart[:, seen], axis=0) / measured[:, seen].sum(axis=0)
    mean, low, high = student_interval(each)
    by_seed = tuple(float(np.nanmean(row)) for row in apart if not np.isnan(row).all())
    return Difference(mean, low, high, int(seen.sum()), "clients", by_seed)
