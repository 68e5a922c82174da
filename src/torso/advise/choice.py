"""The rule that chooses a method, as pure functions of accuracies by client.

Arms are compared on parts of the training samples. An arm that goes on to the next part has scores on one part more.
The best of several arms looks better than it is. So gains over FedAvg are drawn towards what the method gained in other
settings: the less certain a gain, the more. The largest such gain is the best guess. It is advised if it is clear: if
it is positive with a chance of three to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from torso.advise.candidates import FEDAVG, Candidate
from torso.report.statistics import student_quantile

LEVEL = 0.8  # level of the intervals that are shown
CLEAR = 0.5  # level of the interval that has to be above zero: then the gain is positive with 75 %
Scores = Mapping[int, float]
"""Client → accuracy of its own model in %; clients without samples to measure on are left out."""


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
    """Fine-tuning of a client's own model: personalize.lr and personalize.epochs. 0 epochs: no fine-tuning."""

    lr: float = 0.0
    epochs: int = 0


@dataclass(frozen=True)
class Outcome:
    """The scores of an arm with this fine-tuning on each part so far; none if it failed."""

    arm: Arm
    tuning: Tuning
    scores: tuple[Scores, ...]  # by part; an empty dict for a part on which it was not measured
    status: str = "ok"

    @property
    def mean(self) -> float:
        """The mean accuracy over clients, then over parts; −∞ if there are no scores."""
        found = [fmean(some.values()) for some in self.scores if some]
        return fmean(found) if found else -math.inf


@dataclass(frozen=True)
class Gain:
    """A paired difference in percentage points with its interval. A single client gives no interval."""

    mean: float
    low: float | None
    high: float | None
    clients: int
    error: float | None = None  # standard error of the mean

    @property
    def clear(self) -> bool:
        """Whether it is positive with a chance of three to one. A stricter rule costs more where it stays with FedAvg
        without reason than it saves where a method is not better (docs/advise.md)."""
        return self.error is not None and self.mean > student_quantile(self.clients - 1, CLEAR) * self.error

    def as_json(self) -> dict[str, Any]:
        ends = [None if end is None else round(end, 4) for end in (self.low, self.high)]
        return {"mean": round(self.mean, 4), "low": ends[0], "high": ends[1], "clients": self.clients}

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.1f} points (one client: no interval)"
        return f"{self.mean:+.1f} points [{self.low:+.1f}, {self.high:+.1f}]"


def gain(
    ours: Sequence[Scores], theirs: Sequence[Scores], spread: float = math.inf, expected: float = 0.0
) -> Gain | None:
    """The gain of `ours` over `theirs`, both given by part: by client, averaged over the parts on which both were
    measured. None if they share no client.

    The variance of the mean is that over clients. With several parts, each at its own seed, the variance between parts
    is added, because an effect of the seed on all clients does not show between clients. The prior of a gain is normal
    with mean `expected` and standard deviation `spread` = τ. So the share τ² / (τ² + variance) of the mean is kept, the
    rest is `expected`, and the variance is multiplied by the same share. The interval is Student's."""
    apart: dict[int, list[float]] = {}
    by_part: list[float] = []
    for mine, other in zip(ours, theirs, strict=False):  # an arm that failed has fewer parts
        shared = sorted(mine.keys() & other.keys())
        for client in shared:
            apart.setdefault(client, []).append(mine[client] - other[client])
        if shared:
            by_part.append(fmean(mine[client] - other[client] for client in shared))
    if not apart:
        return None
    each = [fmean(values) for values in apart.values()]
    mean, count = fmean(each), len(each)
    if count < 2:
        return Gain(mean, None, None, count)
    squared = variance(each) / count + (variance(by_part) / len(by_part) if len(by_part) > 1 else 0.0)
    kept = 1 / (1 + squared / spread**2)
    drawn = kept * mean + (1 - kept) * expected
    error = math.sqrt(kept * squared)
    half = student_quantile(count - 1, LEVEL) * error
    return Gain(drawn, drawn - half, drawn + half, count, error)


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
"""(rates that were tried, the best of them) → a rate next to the best that was not tried, or None:
`candidates.untried_rate_near`."""


def reference(outcomes: Sequence[Outcome]) -> Outcome | None:
    """FedAvg's best outcome, over its rates and fine-tunings; None if all its runs failed."""
    found = [one for one in outcomes if one.arm.candidate is FEDAVG and any(one.scores)]
    return max(found, key=lambda one: one.mean) if found else None


def ranked(outcomes: Sequence[Outcome], to: Outcome) -> list[tuple[Outcome, float]]:
    """(best outcome, its mean gain over `to`) of each arm, the best arm first. Gains are paired by client. Arms that
    failed are left out; of equal outcomes the first is taken."""
    best: dict[Arm, tuple[Outcome, float]] = {}
    for one in outcomes:
        over = gain(one.scores, to.scores)
        if over is not None and (one.arm not in best or over.mean > best[one.arm][1]):
            best[one.arm] = one, over.mean
    return sorted(best.values(), key=lambda pair: -pair[1])


def next_arm(
    order: Sequence[tuple[Outcome, float]], tried: Sequence[Arm], next_to: NextTo, among: int = 3
) -> Arm | None:
    """The next arm to try: of the `among` best methods, the first that has an untried rate next to its best one.
    Methods that have tried only one rate do not count. None: no method has such a rate."""
    best = {one.arm.name: one.arm for one, _ in reversed(order)}
    for name in list(dict.fromkeys(one.arm.name for one, _ in order))[:among]:
        rates = [arm.rate for arm in tried if arm.name == name]
        if len(rates) > 1 and (rate := next_to(rates, best[name].rate)) is not None:
            return Arm(best[name].candidate, rate)
    return None


def promoted(outcomes: Sequence[Outcome], fedavg: int, others: int, each: int = 2) -> list[Outcome]:
    """The outcomes that go on to the next part: `fedavg` arms of FedAvg and `others` of other methods, with at most
    `each` arms of a method."""
    best = reference(outcomes)
    assert best is not None
    order = [one for one, _ in ranked(outcomes, best)]
    if fedavg == 1 and (first := steady([one for one in order if one.arm.candidate is FEDAVG])) is not None:
        order = [one for one in order if one is first or one.arm.candidate is not FEDAVG]
    taken: list[Outcome] = []
    for one in order:
        taken_fedavg = sum(other.arm.candidate is FEDAVG for other in taken)
        taken_others = len(taken) - taken_fedavg
        full = taken_fedavg == fedavg if one.arm.candidate is FEDAVG else taken_others == others
        same_method = sum(other.arm.name == one.arm.name for other in taken)
        if not full and same_method < each:
            taken.append(one)
    return taken


def joined(before: Sequence[Outcome], found: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes that went on, with their scores on the next part added. Those that failed there are left out."""
    next_scores = {(one.arm, one.tuning): one.scores for one in found if any(one.scores)}
    return [
        replace(one, scores=(*one.scores, *next_scores[one.arm, one.tuning]))
        for one in before
        if (one.arm, one.tuning) in next_scores
    ]


def best_guess(fedavg: Outcome, others: Sequence[Outcome]) -> tuple[Outcome | None, Gain | None]:
    """The outcome with the largest gain over FedAvg, drawn towards what the method is known to gain, and this gain;
    (None, None) if there is no other outcome. Each method stands at its steady rate."""
    methods = dict.fromkeys(one.arm.candidate for one in others)
    chosen = [steady([one for one in others if one.arm.candidate is candidate]) for candidate in methods]
    gains = [(one, over_fedavg(one, fedavg)) for one in chosen if one is not None]
    known = [(one, over) for one, over in gains if over is not None]
    return max(known, key=lambda pair: pair[1].mean) if known else (None, None)


def over_fedavg(one: Outcome, fedavg: Outcome) -> Gain | None:
    """The gain over FedAvg, drawn towards what the method is known to gain."""
    candidate = one.arm.candidate
    return gain(one.scores, fedavg.scores, candidate.spread, candidate.gain)
