"""Do the papers' claims hold? Each claim is a comparison (claims.toml), judged by the numbers that there are."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torso.papers.answers import Answer
from torso.papers.review import Pairs, pairs

_FILE = Path(__file__).with_name("claims.toml")


@dataclass(frozen=True)
class Claim:
    """`better` minus `worse` is above `by` in at least `share` of the pairs of the tables.

    `same`: the two sides name several methods each, to be compared one to one: the same one (`method`), or by what
    stands before the plus sign (`base`)."""

    paper: str
    says: str
    tables: tuple[str, ...]
    better: Mapping[str, Any]
    worse: Mapping[str, Any]
    by: float = 0.0
    share: float = 1.0
    same: str = ""

    def one_to_one(self) -> list[Claim]:
        if not self.same:
            return [self]
        others = {_base(name, self.same): name for name in self.worse["method"]}
        return [
            replace(
                self,
                same="",
                better={**self.better, "method": name},
                worse={**self.worse, "method": others[_base(name, self.same)]},
            )
            for name in self.better["method"]
        ]


def _base(name: str, same: str) -> str:
    return name.partition("+")[0] if same == "base" else name


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    published: Pairs
    ours: Pairs
    tables: tuple[str, ...] = field(default=())  # those with numbers of ours

    @property
    def word(self) -> str:
        if not self.ours.there:
            return "no evidence yet"
        if self.ours.share >= self.claim.share:
            return "holds"
        return "holds in part" if self.ours.share >= 0.5 else "does not hold"


def claims() -> tuple[Claim, ...]:
    tree = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(Claim(**{**one, "tables": tuple(one["tables"])}) for one in tree["claims"])


def judge(claim: Claim, tables: Mapping[str, Sequence[Answer]]) -> Verdict:
    """By the records of its tables: published ones are always there, ours where they have been run."""
    answers = [answer for name in claim.tables for answer in tables.get(name, ())]
    published, ours = (
        _sum([pairs(answers, one.better, one.worse, mine, claim.by) for one in claim.one_to_one()])
        for mine in (False, True)
    )
    measured = tuple(
        name for name in claim.tables if any(answer["ours"] is not None for answer in tables.get(name, ()))
    )
    return Verdict(claim, published, ours, measured)


def _sum(found: Sequence[Pairs]) -> Pairs:
    names = ("held", "there", "clear", "against")
    held, there, clear, against = (sum(getattr(one, name) for one in found) for name in names)
    total = sum(one.mean * one.there for one in found if one.there)
    return Pairs(held, there, total / there if there else math.nan, clear, against)
