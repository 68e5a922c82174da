"""The choice rule, as pure functions of accuracies by client.

Methods are ranked on part A. The best one beside FedAvg is the challenger. Parts B and C, by which nothing was chosen,
say how much it gains over FedAvg with fine-tuning: it is advised where the whole interval is above zero. Training
alone, which takes no part in the tournament, is judged on part B, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torso.advise.candidates import FEDAVG, Candidate
from torso.report.statistics import student_interval

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
    """Ours minus theirs, one entry a seed: by client, averaged over the seeds at which both were measured."""
    apart: dict[int, list[float]] = {}
    for mine, other in zip(ours, theirs, strict=True):
        for client in sorted(mine.keys() & other.keys()):
            apart.setdefault(client, []).append(mine[client] - other[client])
    if not apart:
        return None
    mean, low, high = student_interval([fmean(values) for values in apart.values()], SURE)
    return Gain(mean, low, high, len(apart))


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


def best_rate(order: Sequence[tuple[Outcome, float]], name: str) -> float | None:
    """The best rate of a method; None where it failed, or has not been run."""
    return next((one.arm.rate for one, _ in order if one.arm.name == name), None)


def further(
    order: Sequence[tuple[Outcome, float]], tried: Sequence[Arm], next_to: NextTo, among: int = 2
) -> Arm | None:
    """The best method of the first `among` at a rate that is worth a try: one next to its best. Methods that were tried
    at one rate are left as they are."""
    for name in list(dict.fromkeys(one.arm.name for one, _ in order))[:among]:
        rates = [arm.rate for arm in tried if arm.name == name]
        best = next(one.arm for one, _ in order if one.arm.name == name)
        if len(rates) > 1 and (rate := next_to(rates, best.rate)) is not None:
            return Arm(best.candidate, rate)
    return None


def challenger(order: Sequence[tuple[Outcome, float]]) -> Outcome | None:
    """The best outcome of a method other than FedAvg."""
    return next((one for one, _ in order if one.arm.candidate is not FEDAVG), None)


def advised(fedavg: Outcome, best: Outcome | None, alone: Outcome, judged: Judged) -> Outcome:
    """FedAvg with fine-tuning, unless the challenger is clearly better; training alone where it is clearly better than
    either. Who is compared with whom is fixed before parts B and C are looked at."""
    found = fedavg
    if best is not None and (over := judged(best, fedavg)) is not None and over.clear:
        found = best
    over = judged(alone, found)
    return alone if over is not None and over.clear else found
