"""The choice rule, as pure functions of accuracies by client.

Methods are ranked on part A. The best one beside FedAvg is the challenger. Parts B and C, by which nothing was chosen,
say how much it gains over FedAvg with fine-tuning: it is advised where the whole interval is above zero. Training
alone, which takes no part in the tournament, is judged on part B, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from torso.advise.candidates import FEDAVG, Candidate
from torso.report.statistics import student_quantile

SURE = 0.9  # level of intervals: where all of it is above zero, the gain is so with 95 %

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
    """What an arm has reached after this fine-tuning; no scores where it failed."""

    arm: Arm
    tuning: Tuning
    scores: Scores
    status: str = "ok"
    generic: float | None = None

    @property
    def mean(self) -> float:
        return fmean(self.scores.values()) if self.scores else -math.inf


@dataclass(frozen=True)
class Gain:
    """A paired difference in percentage points, with its interval over clients; one client gives none."""

    mean: float
    low: float | None
    high: float | None
    clients: int

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


def gain(ours: Sequence[Scores], theirs: Sequence[Scores]) -> Gain | None:
    """Ours minus theirs, one entry a seed: by client, averaged over the seeds at which both were measured. The interval
    is Student's over clients; where there are several seeds, the variance of their mean is added, because what happens
    to all clients at a seed does not show in differences between clients."""
    apart: dict[int, list[float]] = {}
    by_seed: list[float] = []
    for mine, other in zip(ours, theirs, strict=True):
        shared = sorted(mine.keys() & other.keys())
        for client in shared:
            apart.setdefault(client, []).append(mine[client] - other[client])
        by_seed += [fmean(mine[client] - other[client] for client in shared)] if shared else []
    if not apart:
        return None
    each = [fmean(values) for values in apart.values()]
    mean, count = fmean(each), len(each)
    if count < 2:
        return Gain(mean, None, None, count)
    squared = variance(each) / count + (variance(by_seed) / len(by_seed) if len(by_seed) > 1 else 0.0)
    half = student_quantile(count - 1, SURE) * math.sqrt(squared)
    return Gain(mean, mean - half, mean + half, count)


NextTo = Callable[[Sequence[float], float], float | None]
"""(rates that were tried, the best of them) → one next to it that was not; `candidates.beside`."""

Judged = Callable[[Outcome, Outcome], Gain | None]
"""The gain of one over another on parts B and C."""


def reference(outcomes: Sequence[Outcome]) -> Outcome | None:
    """FedAvg with the rate and the fine-tuning that are best for it; None where it failed throughout."""
    found = [one for one in outcomes if one.arm.candidate is FEDAVG and one.scores]
    return max(found, key=lambda one: one.mean) if found else None


def ranked(outcomes: Sequence[Outcome], to: Outcome) -> list[tuple[Outcome, float]]:
    """The best outcome of each arm with its mean gain over `to`, paired by client, the best first. Arms that failed are
    left out; of equals the first stays."""
    best: dict[tuple[str, float], tuple[Outcome, float]] = {}
    for one in outcomes:
        over = gain([one.scores], [to.scores])
        if over is None:
            continue
        key = one.arm.name, one.arm.rate
        if key not in best or over.mean > best[key][1]:
            best[key] = one, over.mean
    return sorted(best.values(), key=lambda pair: -pair[1])


def further(
    order: Sequence[tuple[Outcome, float]], tried: Sequence[Arm], next_to: NextTo, among: int = 2
) -> Arm | None:
    """One of the `among` best methods at a rate that is worth a try: one next to its best. The method with fewer rates
    so far comes first. Methods that were tried at one rate are left as they are."""
    best = {one.arm.name: one.arm for one, _ in reversed(order)}
    names = list(dict.fromkeys(one.arm.name for one, _ in order))[:among]
    rates = {name: [arm.rate for arm in tried if arm.name == name] for name in names}
    for name in sorted(names, key=lambda name: len(rates[name])):
        if len(rates[name]) > 1 and (rate := next_to(rates[name], best[name].rate)) is not None:
            return Arm(best[name].candidate, rate)
    return None


def leading(order: Sequence[tuple[Outcome, float]], places: int, each: int = 2) -> list[Outcome]:
    """Who is run at a second seed: so many arms, at most `each` rates of a method."""
    taken: list[Outcome] = []
    for one, _ in order:
        if len(taken) < places and sum(other.arm.name == one.arm.name for other in taken) < each:
            taken.append(one)
    return taken


def at_both(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Outcome]:
    """What was run at two seeds, with the mean of each client; what failed at either is left out."""
    there = {(one.arm, one.tuning): one.scores for one in second}
    found = []
    for one in first:
        other = there.get((one.arm, one.tuning), {})
        scores = {client: (value + other[client]) / 2 for client, value in one.scores.items() if client in other}
        found += [replace(one, scores=scores)] if scores else []
    return found


def challenger(order: Sequence[tuple[Outcome, float]]) -> Outcome | None:
    """The best outcome of a method other than FedAvg."""
    return next((one for one, _ in order if one.arm.candidate is not FEDAVG), None)


def advised(fedavg: Outcome, best: Outcome | None, alone: Outcome, judged: Judged) -> Outcome:
    """FedAvg with fine-tuning, unless the challenger is clearly better; training alone where it is clearly better than
    FedAvg and than that. Who is compared with whom is fixed before parts B and C are looked at."""

    def clearly(ours: Outcome, theirs: Outcome) -> bool:
        over = judged(ours, theirs)
        return over is not None and over.clear

    found = best if best is not None and clearly(best, fedavg) else fedavg
    return alone if clearly(alone, fedavg) and clearly(alone, found) else found
