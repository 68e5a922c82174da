"""How far two methods lie apart, and how sure that is: paired differences with a Student interval.

Both methods met the same clients with the same seeds, so the difference is taken client by client. A client's
differences at several seeds are averaged first; the interval is then Student's over clients. It says how well these
clients pin the mean difference down, at these seeds. A measure without clients (one generic model) pairs seeds instead.
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
    """Ours minus theirs in percentage points; no interval where a single pair gives none."""

    mean: float
    low: float | None
    high: float | None
    pairs: int
    over: str  # clients or seeds
    by_seed: tuple[float, ...]

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Refused:
    """No difference is given, and why."""

    reason: str


def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """By how many standard errors a mean's interval (95%) reaches to either side."""
    from scipy.special import stdtrit  # slow to import, and not every command needs it

    return float(stdtrit(freedom, (1 + level) / 2))


def student_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float | None, float | None]:
    """Mean and its interval (95%); a single value has none."""
    found = np.asarray(values, dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return mean, None, None
    half = student_quantile(len(found) - 1, level) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return mean, mean - half, mean + half


def paired_difference(ours: Mapping[int, Scores], theirs: Mapping[int, Scores]) -> Difference | Refused:
    """By seed; clients are paired by their number, and one that either side could not measure is left out."""
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
