"""How near our numbers of a table are to the published ones: pure functions of the answers in table.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from torso.papers.tables.answers import Answer, diverged
from torso.papers.tables.interval import half_width_to_published

SETTING = (
    *("dataset", "model", "metric", "clients", "partition", "shards", "test_shards", "alpha", "imbalance_ratio"),
    *("fraction", "local_epochs", "per_class"),
)
"""Keys of the data and of the federation. Methods and their options are ranked within one setting of these keys."""

CONTEXT = (
    *SETTING,
    *("fl_optimizer", "finetune_part", "momentum", "head_init", "server_data_ratio", "server_update_part"),
    *("local_update_part", "pretrained", "balanced_loss", "head_lr_ratio", "total_epochs"),
)
"""Two numbers can be compared if they agree on these keys. Learning rates and the like belong to a method."""


def value(answer: Answer, key: str) -> Any:
    """The value of a key of the answer's setting, or of the answer itself."""
    return answer["setting"].get(key, answer.get(key))


def judged(answer: Answer) -> bool:
    """Whether ours can be judged by the published number: there is a result, both are accuracies, and the published
    number does not come from a mistake that ours leaves out."""
    known = (answer["ours"] is not None or diverged(answer)) and answer["published"]["mean"] is not None
    return known and not answer.get("not_comparable") and not str(answer["metric"]).startswith("total_")  # costs


def comparable(answer: Answer) -> bool:
    """Whether a difference can be computed. If a seed diverged, it cannot: the mean over the others is too good."""
    return judged(answer) and not diverged(answer)


def apart(answer: Answer) -> float:
    """Ours minus published, in points."""
    return float(answer["ours"]["mean"]) - float(answer["published"]["mean"])


def within_points(answers: Iterable[Answer], points: float = 3.0) -> tuple[int, int]:
    """How many numbers lie within `points` of the paper, and of how many. Training that diverged is not near."""
    found = [not diverged(answer) and abs(apart(answer)) <= points for answer in answers if judged(answer)]
    return sum(found), len(found)


def within_error(answers: Iterable[Answer]) -> tuple[int, int]:
    """How many numbers lie within the 95 % interval of ours minus published, and of how many with several seeds."""
    known = [(apart(answer), half_width_to_published(answer)) for answer in answers if comparable(answer)]
    several = [(difference, error) for difference, error in known if not math.isnan(error)]
    return sum(abs(difference) <= error for difference, error in several), len(several)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; ties have their mean rank. NaN if all values of one side are equal."""
    a, b = (ranks(values) for values in (one, other))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: Sequence[float]) -> np.ndarray:
    """The ranks of the values, from 1 for the smallest; ties have their mean rank."""
    found = np.asarray(values, dtype=np.float64)
    return np.array([(found < v).sum() + ((found == v).sum() + 1) / 2 for v in found])


def rank_correlations(answers: Iterable[Answer], least: int = 3) -> dict[tuple[tuple[str, Any], ...], float]:
    """Setting → the rank correlation of ours and published, over the methods and options in this setting. Settings
    with fewer than `least` of them are left out."""
    groups: dict[tuple[tuple[str, Any], ...], list[Answer]] = {}
    for answer in answers:
        if comparable(answer):
            key = tuple((k, value(answer, k)) for k in SETTING if value(answer, k) is not None)
            groups.setdefault(key, []).append(answer)
    return {
        key: spearman([a["ours"]["mean"] for a in group], [a["published"]["mean"] for a in group])
        for key, group in groups.items()
        if len(group) >= least
    }


@dataclass(frozen=True)
class VariantCount:
    """How many numbers of a variant are near the paper."""

    name: str
    near: int
    there: int  # of how many
    first: int | None  # how many main runs of the same numbers are near; None: none of them has been run


def second_lines(answers: Sequence[Answer]) -> list[VariantCount]:
    """The counts of each variant. If a variant is near and the main runs of the same numbers are not, the published
    numbers were probably made in the way of the variant."""
    firsts = {_number(answer): answer for answer in answers if not answer["variant"]}
    found = []
    for name in dict.fromkeys(str(answer["variant"]) for answer in answers if answer["variant"]):
        seconds = [answer for answer in answers if answer["variant"] == name and judged(answer)]
        near, there = within_points(seconds)
        if not there:
            continue
        first = [{**firsts[_number(second)], "not_comparable": ""} for second in seconds]
        near_first, run_first = within_points(first)
        found.append(VariantCount(name, near, there, near_first if run_first else None))
    return found


def _number(answer: Answer) -> str:
    """The published number that an answer belongs to, as a key."""
    return json.dumps([answer[key] for key in ("dataset", "model", "setting", "method", "metric")])


@dataclass(frozen=True)
class Review:
    """Counts over the main runs of a table, and the counts of its variants."""

    numbers: int
    measured: int
    diverged: int
    near: tuple[int, int]  # how many, of how many
    within: tuple[int, int]  # the 95 % interval: how many, of how many
    offset: float  # mean of ours minus published, in points
    order: float  # mean rank correlation over settings; NaN if no setting has three methods
    settings: int  # that have a rank correlation
    second: Sequence[VariantCount]


def review(answers: Sequence[Answer]) -> Review:
    """The review of a table."""
    lines = [answer for answer in answers if not answer["variant"]]
    found = [r for r in rank_correlations(lines).values() if not math.isnan(r)]
    differences = [apart(answer) for answer in lines if comparable(answer)]
    return Review(
        numbers=len(lines),
        measured=sum(answer["ours"] is not None or diverged(answer) for answer in lines),
        diverged=sum(map(diverged, lines)),
        near=within_points(lines),
        within=within_error(lines),
        offset=fmean(differences) if differences else math.nan,
        order=fmean(found) if found else math.nan,
        settings=len(found),
        second=second_lines(answers),
    )
