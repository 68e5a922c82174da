"""Pairs of numbers in one setting, of which a claim says that one is larger, and counts over many pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from torso.papers.tables.answers import Answer, diverged, failures
from torso.papers.tables.interval import half_width, variance_over_seeds
from torso.papers.tables.review import CONTEXT, value


@dataclass(frozen=True)
class Pair:
    """Two answers in one setting. The claim: `better` is above `worse` by more than `by` points.

    Methods with a parameter `ours` use our numbers if it is true, else the paper's."""

    better: Answer
    worse: Answer
    by: float = 0.0

    @property
    def run(self) -> bool:
        """Whether both sides have been run (or diverged)."""
        return all(side["ours"] is not None or diverged(side) for side in (self.better, self.worse))

    @property
    def quoted(self) -> bool:
        """Whether the paper has numbers of this pair. It has none in settings of our own."""
        return all(side["published"] for side in (self.better, self.worse))

    @property
    def seeds(self) -> int:
        """How many seeds of ours the pair has, failed ones included."""
        sides = (self.better, self.worse)
        return min(len((side["ours"] or {"seeds": ()})["seeds"]) + len(failures(side)) for side in sides)

    def diverged(self, ours: bool) -> bool:
        return _lost(self.better, ours) or _lost(self.worse, ours)

    def held(self, ours: bool) -> bool:
        """Whether the claim is true. A side that diverged has lost; if both diverged, the claim is not true."""
        if self.diverged(ours):
            return not _lost(self.better, ours)
        return self.above(ours) > 0

    def difference(self, ours: bool) -> float:
        """The difference of the means: of ours over the seeds that both sides have, if they share any. A seed also
        deals the data, so a lucky deal of one side would be no evidence."""
        better, worse = (_found(side, ours) for side in (self.better, self.worse))
        shared = better["seeds"].keys() & worse["seeds"].keys() if ours else ()
        if shared:
            return fmean(better["seeds"][seed] - worse["seeds"][seed] for seed in sorted(shared))
        return float(better["mean"]) - float(worse["mean"])

    def above(self, ours: bool) -> float:
        """The difference minus the claimed one."""
        return self.difference(ours) - self.by

    def sure(self) -> int:
        """1 or -1 if our difference is above or below the claimed one by more than Student's 95 % interval; else 0."""
        error = half_width(variance_over_seeds(self.better), variance_over_seeds(self.worse))
        return int(self.above(ours=True) > error) - int(self.above(ours=True) < -error)  # no number is above NaN


def _found(answer: Answer, ours: bool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer["ours"] if ours else answer["published"]
    return found


def _lost(answer: Answer, ours: bool) -> bool:
    """Whether a side diverged. The published mean is None if the paper says that training failed."""
    return diverged(answer) if ours else answer["published"]["mean"] is None


@dataclass(frozen=True)
class Tally:
    """Counts over pairs: in how many of them a claim is true, and how clearly."""

    held: int  # pairs in which the claim is true …
    there: int  # … of this many
    mean: float  # difference in points, over the pairs in which nothing diverged
    diverged: int = 0  # pairs in which a side diverged
    walkovers: int = 0  # pairs in which the claim is true only because the other side diverged
    clear: int = 0  # pairs in which ours is for the claim by more than the error over seeds
    against: int = 0  # and against it
    seeds: Mapping[int, int] = field(default_factory=dict)  # number of seeds → how many pairs have it

    @property
    def share(self) -> float:
        """The share of pairs in which the claim is true; NaN without pairs."""
        return self.held / self.there if self.there else math.nan

    @property
    def several(self) -> int:
        """Pairs with two seeds or more."""
        return sum(count for seeds, count in self.seeds.items() if seeds > 1)


def tally(pairs: Sequence[Pair], ours: bool) -> Tally:
    """Count the pairs, by the paper's numbers or by ours. With `ours`, only pairs that have been run count."""
    there = [pair for pair in pairs if (pair.run if ours else pair.quoted)]
    finished = [pair for pair in there if not pair.diverged(ours)]
    sure = [pair.sure() for pair in finished] if ours else []
    return Tally(
        held=sum(pair.held(ours) for pair in there),
        there=len(there),
        mean=fmean(pair.difference(ours) for pair in finished) if finished else math.nan,
        diverged=len(there) - len(finished),
        walkovers=sum(pair.diverged(ours) and pair.held(ours) for pair in there),
        clear=sure.count(1),
        against=sure.count(-1),
        seeds=Counter(pair.seeds for pair in there) if ours else {},
    )


def matched(
    answers: Sequence[Answer], better: Mapping[str, Any], worse: Mapping[str, Any], by: float = 0.0
) -> list[Pair]:
    """All pairs of an answer that `better` selects and an answer in the same setting that `worse` selects.

    Two answers are in one setting if they agree on every key except those on which the selectors differ. A key that
    one side does not have (local-only has no fraction) agrees with any value."""
    keys = [key for key in {*CONTEXT, "method", *better} if better.get(key) == worse.get(key)]
    left, right = ([answer for answer in answers if chosen_by(answer, side)] for side in (better, worse))
    return [
        Pair(a, b, by)
        for a in left
        for b in right
        if a["table"] == b["table"] and a["paper"] == b["paper"] and _agree(a, b, keys)
    ]


def chosen_by(answer: Answer, selector: Mapping[str, Any]) -> bool:
    """Whether the answer has the value, or one of the values, of every key of the selector. Variants are selected only
    if the selector names `variant`."""
    if answer["variant"] and "variant" not in selector:
        return False
    return all(
        value(answer, key) in (wanted if isinstance(wanted, list) else [wanted]) for key, wanted in selector.items()
    )


def _agree(one: Answer, other: Answer, keys: Sequence[str]) -> bool:
    both = ((value(one, key), value(other, key)) for key in keys)
    return all(a is None or b is None or a == b for a, b in both)
