"""Reading a reproduced table as a reviewer would: pure functions over the records of table.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from torso.papers.answers import Answer

CONTEXT = (
    *("dataset", "model", "metric", "clients", "partition", "shards", "test_shards", "alpha", "fraction"),
    *(
        "local_epochs",
        "fl_optimizer",
        "imbalance_ratio",
        "finetune_part",
        "momentum",
        "head_init",
        "server_data_ratio",
        "server_update_part",
    ),
    *("local_update_part", "pretrained", "balanced_loss", "head_lr_ratio", "total_epochs"),
)
"""Keys that make two numbers comparable where they agree; learning rates and the like belong to a method."""

_SETTING = frozenset(CONTEXT[:10])


def value(answer: Answer, key: str) -> Any:
    return answer["setting"].get(key, answer.get(key))


def comparable(answer: Answer) -> bool:
    """Both accuracies are there, and the published one did not come from a mistake that ours leaves out."""
    known = answer["ours"] is not None and answer["published"]["mean"] is not None
    return known and not answer.get("not_comparable") and not str(answer["metric"]).startswith("total_")  # costs


def apart(answer: Answer) -> float:
    """Ours minus published, in points."""
    return float(answer["ours"]["mean"]) - float(answer["published"]["mean"])


def standard_error(answer: Answer) -> float:
    """Of our mean over seeds; NaN for one seed."""
    values = list(answer["ours"]["seeds"].values())
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def within_points(answers: Iterable[Answer], points: float = 3.0) -> tuple[int, int]:
    """How many of the comparable numbers lie within so many points, and how many there are."""
    found = [abs(apart(answer)) <= points for answer in answers if comparable(answer)]
    return sum(found), len(found)


def within_errors(answers: Iterable[Answer], errors: float = 2.0) -> tuple[int, int]:
    """How many lie within so many standard errors of our mean, of those with several seeds."""
    several = [answer for answer in answers if comparable(answer) and not math.isnan(standard_error(answer))]
    return sum(abs(apart(answer)) <= errors * standard_error(answer) for answer in several), len(several)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation, ties ranked by their mean; NaN where one side is all equal."""
    a, b = (ranks(values) for values in (one, other))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    return np.array([(found < v).sum() + ((found == v).sum() + 1) / 2 for v in found])


def rank_correlations(answers: Iterable[Answer], least: int = 3) -> dict[tuple[tuple[str, Any], ...], float]:
    """By setting, the rank correlation of ours and published over what is compared there: methods and their options."""
    groups: dict[tuple[tuple[str, Any], ...], list[Answer]] = {}
    for answer in answers:
        if comparable(answer):
            key = tuple((k, value(answer, k)) for k in CONTEXT if k in _SETTING and value(answer, k) is not None)
            groups.setdefault(key, []).append(answer)
    return {
        key: spearman([a["ours"]["mean"] for a in group], [a["published"]["mean"] for a in group])
        for key, group in groups.items()
        if len(group) >= least
    }


@dataclass(frozen=True)
class Review:
    """A table in numbers; `order`: mean rank correlation over settings, NaN where no setting has enough."""

    numbers: int
    measured: int
    near: tuple[int, int]
    within: tuple[int, int]
    offset: float
    order: float
    settings: int


def review(answers: Sequence[Answer]) -> Review:
    found = [r for r in rank_correlations(answers).values() if not math.isnan(r)]
    differences = [apart(answer) for answer in answers if comparable(answer)]
    return Review(
        numbers=sum(not answer["variant"] for answer in answers),
        measured=sum(answer["ours"] is not None and not answer["variant"] for answer in answers),
        near=within_points(answers),
        within=within_errors(answers),
        offset=fmean(differences) if differences else math.nan,
        order=fmean(found) if found else math.nan,
        settings=len(found),
    )


@dataclass(frozen=True)
class Pairs:
    """A claimed difference: in how many pairs it has the claimed sign, and its mean, in the paper and in ours.

    `clear` and `against`: of pairs with several seeds, in how many it lies more than two standard errors above what is
    claimed, or below it."""

    held: int
    there: int
    mean: float
    clear: int = 0
    against: int = 0

    @property
    def share(self) -> float:
        return self.held / self.there if self.there else math.nan


def pairs(
    answers: Sequence[Answer],
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    ours: bool,
    margin: float = 0.0,
) -> Pairs:
    """Left minus right wherever both stand in one setting; held where it is above `margin`.

    A key that one side does not have (local-only has no fraction) agrees with any value. Where neither side names a
    method, each is compared with itself."""
    chosen = {*left, *right}
    keys = [key for key in (*CONTEXT, "method") if key not in chosen]
    mine, theirs = ([a for a in answers if chosen_by(a, side) and _mean(a, ours) is not None] for side in (left, right))
    found = [
        (_mean(a, ours) - _mean(b, ours) - margin, _error(a, b) if ours else math.nan)  # type: ignore[operator]
        for a in mine
        for b in theirs
        if a["table"] == b["table"] and a["paper"] == b["paper"] and _agree(a, b, keys)
    ]
    return Pairs(
        held=sum(d > 0 for d, _ in found),
        there=len(found),
        mean=fmean(d + margin for d, _ in found) if found else math.nan,
        clear=sum(d > 2 * error for d, error in found),  # no number is above NaN
        against=sum(d < -2 * error for d, error in found),
    )


def _error(one: Answer, other: Answer) -> float:
    """Standard error of a difference of two means over seeds; NaN where one has one seed."""
    return math.hypot(standard_error(one), standard_error(other))


def chosen_by(answer: Answer, selector: Mapping[str, Any]) -> bool:
    """Whether every key of the selector has its value, or one of its values, here; variants only when asked for."""
    if answer["variant"] and "variant" not in selector:
        return False
    return all(
        value(answer, key) in (wanted if isinstance(wanted, list) else [wanted]) for key, wanted in selector.items()
    )


def _agree(one: Answer, other: Answer, keys: Sequence[str]) -> bool:
    both = ((value(one, key), value(other, key)) for key in keys)
    return all(a is None or b is None or a == b for a, b in both)


def _mean(answer: Answer, ours: bool) -> float | None:
    found = answer["ours"] if ours else answer["published"]
    return None if found is None else found["mean"]
