"""The choice rule, as pure functions of accuracies by client.

Arms are compared on parts of the training samples; each part that an arm survives adds to what is known of it. The best
of several looks better than it is, so gains over FedAvg are shrunk towards zero, the more the less they are known. The
largest shrunk gain is the best guess. It is advised where it is clear: its whole interval is above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from torso.advise.candidates import FEDAVG, Candidate
from torso.report.statistics import student_quantile

SURE = 0.8  # level of intervals: where all of it is above zero, the gain is so with 90 %
USUAL = (
    3.0  # points: root mean square of how far the first candidates are from FedAvg (tests/advise/test_candidates.py)
)

Scores = Mapping[int, float]
"""Client → accuracy of its own model in %, of clients that could be measured."""


@dataclass(frozen=True)
class Arm:
    """A method with a learning rate."""

    candidate: Candidate
    rate: float

    @property
    def name(self) -> str:
        return self.candidate.name


@dataclass(frozen=True)
class Tuning:
    """How a client's own model is fine-tuned: personalize.lr and personalize.epochs; no epochs: it is not."""

    lr: float = 0.0
    epochs: int = 0


@dataclass(frozen=True)
class Outcome:
    """What an arm has reached after this fine-tuning on each part so far; no scores where it failed."""

    arm: Arm
    tuning: Tuning
    scores: tuple[Scores, ...]  # by part; empty where it was not measured there
    status: str = "ok"

    @property
    def mean(self) -> float:
        found = [fmean(some.values()) for some in self.scores if some]
        return fmean(found) if found else -math.inf


@dataclass(frozen=True)
class Gain:
    """A paired difference in percentage points, with its interval; one client gives none."""

    mean: float
    low: float | None
    high: float | None
    clients: int
    error: float | None = None  # standard error of the mean

    @property
    def clear(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.low is not None and self.low > 0

    def as_json(self) -> dict[str, Any]:
        ends = [None if end is None else round(end, 4) for end in (self.low, self.high)]
        return {"mean": round(self.mean, 4), "low": ends[0], "high": ends[1], "clients": self.clients}

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.1f} points (one client: no interval)"
        return f"{self.mean:+.1f} points [{self.low:+.1f}, {self.high:+.1f}]"


def gain(ours: Sequence[Scores], theirs: Sequence[Scores], usual: float = math.inf) -> Gain | None:
    """Ours minus theirs, one entry a part: by client, averaged over the parts on which both were measured.

    The variance of the mean is that over clients; where there are several parts, each at a seed of its own, the
    variance of their mean is added, because what happens to all clients at a seed does not show between clients. With
    `usual` = τ, a gain is normal around 0 with τ before anything is seen: what was seen is shrunk by
    τ² / (τ² + variance), and so is its variance. The interval is Student's."""
    apart: dict[int, list[float]] = {}
    by_part: list[float] = []
    for mine, other in zip(ours, theirs, strict=False):  # what failed has none
        shared = sorted(mine.keys() & other.keys())
        for client in shared:
            apart.setdefault(client, []).append(mine[client] - other[client])
        by_part += [fmean(mine[client] - other[client] for client in shared)] if shared else []
    if not apart:
        return None
    each = [fmean(values) for values in apart.values()]
    mean, count = fmean(each), len(each)
    if count < 2:
        return Gain(mean, None, None, count)
    squared = variance(each) / count + (variance(by_part) / len(by_part) if len(by_part) > 1 else 0.0)
    kept = 1 / (1 + squared / usual**2)
    error = math.sqrt(kept * squared)
    half = student_quantile(count - 1, SURE) * error
    return Gain(kept * mean, kept * mean - half, kept * mean + half, count, error)


def steady(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Of one method at several rates: the smallest rate whose mean is within one standard error of the best one's.

    A larger rate that is not clearly better only brings the run closer to divergence, which a few short runs may not
    show. None if all failed."""
    there = [one for one in outcomes if any(one.scores)]
    if not there:
        return None
    best = max(there, key=lambda one: one.mean)
    return min((one for one in there if one is best or _level(best, one)), key=lambda one: one.arm.rate)


def _level(best: Outcome, other: Outcome) -> bool:
    """Whether `best` is ahead of `other` by less than one standard error, on the same parts."""
    if [bool(part) for part in best.scores] != [bool(part) for part in other.scores]:
        return False
    over = gain(best.scores, other.scores)
    return over is not None and over.error is not None and over.mean < over.error


NextTo = Callable[[Sequence[float], float], float | None]
"""(rates that were tried, the best of them) → one next to it that was not; `candidates.beside`."""


def reference(outcomes: Sequence[Outcome]) -> Outcome | None:
    """FedAvg with the rate and the fine-tuning that are best for it; None where it failed throughout."""
    found = [one for one in outcomes if one.arm.candidate is FEDAVG and any(one.scores)]
    return max(found, key=lambda one: one.mean) if found else None


def ranked(outcomes: Sequence[Outcome], to: Outcome) -> list[tuple[Outcome, float]]:
    """The best outcome of each arm with its mean gain over `to`, paired by client, the best first. Arms that failed are
    left out; of equals the first stays."""
    best: dict[Arm, tuple[Outcome, float]] = {}
    for one in outcomes:
        over = gain(one.scores, to.scores)
        if over is not None and (one.arm not in best or over.mean > best[one.arm][1]):
            best[one.arm] = one, over.mean
    return sorted(best.values(), key=lambda pair: -pair[1])


def further(
    order: Sequence[tuple[Outcome, float]], tried: Sequence[Arm], next_to: NextTo, among: int = 3
) -> Arm | None:
    """A rate next to the best one of the best method that has such a rate left, of the `among` best methods. Methods
    that were tried at one rate are left as they are."""
    best = {one.arm.name: one.arm for one, _ in reversed(order)}
    for name in list(dict.fromkeys(one.arm.name for one, _ in order))[:among]:
        rates = [arm.rate for arm in tried if arm.name == name]
        if len(rates) > 1 and (rate := next_to(rates, best[name].rate)) is not None:
            return Arm(best[name].candidate, rate)
    return None


def promoted(outcomes: Sequence[Outcome], fedavg: int, others: int, each: int = 2) -> list[Outcome]:
    """Who goes on to the next part: so many arms of FedAvg, and so many others, at most `each` rates of a method."""
    best = reference(outcomes)
    assert best is not None
    order = [one for one, _ in ranked(outcomes, best)]
    if fedavg == 1 and (first := steady([one for one in order if one.arm.candidate is FEDAVG])) is not None:
        order = [one for one in order if one is first or one.arm.candidate is not FEDAVG]
    taken: list[Outcome] = []
    for one in order:
        own = [other for other in taken if other.arm.candidate is FEDAVG]
        full = len(own) == fedavg if one.arm.candidate is FEDAVG else len(taken) - len(own) == others
        if not full and sum(other.arm.name == one.arm.name for other in taken) < each:
            taken.append(one)
    return taken


def joined(before: Sequence[Outcome], found: Sequence[Outcome]) -> list[Outcome]:
    """Those that went on, with their scores on the next part; what failed there is left out."""
    there = {(one.arm, one.tuning): one.scores for one in found if any(one.scores)}
    return [
        replace(one, scores=(*one.scores, *there[key])) for one in before if (key := (one.arm, one.tuning)) in there
    ]


def best_guess(fedavg: Outcome, others: Sequence[Outcome]) -> tuple[Outcome | None, Gain | None]:
    """Whose gain over FedAvg is the largest after it has been shrunk, and that gain; each method at its steady rate."""
    methods = dict.fromkeys(one.arm.candidate for one in others)
    chosen = [steady([one for one in others if one.arm.candidate is candidate]) for candidate in methods]
    gains = [(one, gain(one.scores, fedavg.scores, USUAL)) for one in chosen if one is not None]
    known = [(one, over) for one, over in gains if over is not None]
    return max(known, key=lambda pair: pair[1].mean) if known else (None, None)
