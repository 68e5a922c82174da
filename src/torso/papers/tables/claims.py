"""The papers' claims (claims.toml) and the verdicts on them, by the published numbers and by ours."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torso.papers.tables.answers import Answer
from torso.papers.tables.pairs import Pair, Tally, matched, tally

_FILE = Path(__file__).with_name("claims.toml")
OWN = "fedncm/pretrained"  # settings of our own (docs/pretrained), for which the paper has no numbers
ELSEWHERE = "another body"
STAND_IN = ("plain draw", "mirrored only")  # variants that are judged until more of the main runs have been made


@dataclass(frozen=True)
class ClaimedDifference:
    """A comparison of a claim: `better` minus `worse` is above `by`, in every setting of some tables.

    `same = "base"`: both sides name several methods, which are compared one to one by the name before the plus sign."""

    tables: tuple[str, ...]
    better: Mapping[str, Any]  # key → value, or list of values, of the answers on this side
    worse: Mapping[str, Any]
    by: float = 0.0  # points
    same: str = ""

    def one_to_one(self) -> list[ClaimedDifference]:
        """The comparison itself or, with `same`, one for each pair of methods."""
        if not self.same:
            return [self]
        others = {_base(name): name for name in self.worse["method"]}
        return [
            replace(
                self,
                same="",
                better={**self.better, "method": name},
                worse={**self.worse, "method": others[_base(name)]},
            )
            for name in self.better["method"]
        ]

    def pairs(self, tables: Mapping[str, Sequence[Answer]], way: str = "") -> list[Pair]:
        """The pairs of the main runs or, with `way`, of the variant of this name."""
        answers = [answer for name in self.tables for answer in tables.get(name, ())]
        if way:
            answers = [{**answer, "variant": ""} for answer in answers if answer["variant"] == way]
        return [pair for one in self.one_to_one() for pair in matched(answers, one.better, one.worse, one.by)]


def _base(name: str) -> str:
    return name.partition("+")[0]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: its comparisons are true in at least `share` of all their pairs."""

    paper: str
    says: str  # in our words
    differences: tuple[ClaimedDifference, ...]
    share: float = 1.0

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self.differences for name in one.tables))


@dataclass(frozen=True)
class Verdict:
    """A claim with its pairs of numbers. Each pair has the paper's numbers, some also have ours."""

    claim: Claim
    pairs: Sequence[Pair]
    way: str = ""  # the variant that the claim is judged by; empty: the main runs

    @cached_property
    def published(self) -> Tally:
        return tally(self.pairs, ours=False)

    @cached_property
    def ours(self) -> Tally:
        return tally(self.pairs, ours=True)

    @cached_property
    def published_there(self) -> Tally:
        """The paper's numbers of the pairs that have been run."""
        return tally([pair for pair in self.pairs if pair.run], ours=False)

    @property
    def tables(self) -> set[str]:
        """The tables in which pairs have been run."""
        return {_table(pair.better) for pair in self.pairs if pair.run}

    @property
    def missing(self) -> list[str]:
        """Methods of the claim without any run; empty if no method of it has been run."""
        run = {str(side["method"]) for pair in self.pairs if pair.run for side in (pair.better, pair.worse)}
        named = dict.fromkeys(str(side["method"]) for pair in self.pairs for side in (pair.worse, pair.better))
        return [name for name in named if name not in run] if run else []

    @property
    def word(self) -> str:
        """The verdict in words: `holds so far (plain draw, one seed)`."""
        if not self.ours.there:
            return "no evidence yet"
        doubts = self.doubts
        notes = list(doubts)
        if self.elsewhere:
            notes.insert(0, ELSEWHERE)
        elif self.way:
            notes.insert(0, self.way)
        text = f"{self.outcome} so far" if doubts else self.outcome
        return f"{text} ({', '.join(notes)})" if notes else text

    @property
    def elsewhere(self) -> bool:
        """Whether all pairs that have been run are of our own settings, for which the paper has no numbers."""
        run = [pair for pair in self.pairs if pair.run]
        return bool(run) and not any(pair.quoted for pair in run)

    @property
    def wanted(self) -> float:
        """The share of the pairs that have been run in which the claim has to be true: that of the claim, but not more
        than in the paper's own numbers of these pairs, and at least a half."""
        theirs = self.published_there.share if self.published_there.there else 1.0
        return max(0.5, min(self.claim.share, theirs))

    @property
    def outcome(self) -> str:
        """The verdict by the pairs that have been run.

        A claim that is true in enough pairs holds only in part if more pairs are clearly against it than the paper
        itself has exceptions there. A claim that is true in half of the pairs does not hold if more pairs are clearly
        against it than for it."""
        exceptions = self.published_there.there - self.published_there.held
        if self.ours.share >= self.wanted:
            return "holds" if self.ours.against <= exceptions else "holds in part"
        most = self.ours.share >= 0.5 and self.ours.against <= self.ours.clear
        return "holds in part" if most else "does not hold"

    @property
    def doubts(self) -> list[str]:
        """Why the outcome is not final. It is final once half of the pairs have been run with several seeds. The pairs
        are the paper's or, if only pairs of our own settings were run, those."""
        half = (self.ours if self.elsewhere else self.published).there / 2
        if self.ours.several >= half:
            return []
        seeds = ["one seed"] if not self.ours.several else []
        few = ["few pairs"] if self.ours.there < half else []
        return [*seeds, *few] or ["few pairs with several seeds"]


def _table(answer: Answer) -> str:
    return f"{answer['paper'].lower().replace('-', '')}/{str(answer['table']).lower()}"


def claims() -> tuple[Claim, ...]:
    """All claims of claims.toml."""
    tree = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(_claim(one) for one in tree["claims"])


def _claim(tree: Mapping[str, Any]) -> Claim:
    """The claim of a section of claims.toml. `also`: the same comparison in other tables, with some keys replaced."""
    of_claim = {key: tree[key] for key in ("paper", "says", "share") if key in tree}
    of_difference = {key: tree[key] for key in ("tables", "better", "worse", "by", "same") if key in tree}
    each = [{**of_difference, **other} for other in ({}, *tree.get("also", ()))]
    return Claim(
        **of_claim, differences=tuple(ClaimedDifference(**{**one, "tables": tuple(one["tables"])}) for one in each)
    )


def judge(claim: Claim, tables: Mapping[str, Sequence[Answer]]) -> Verdict:
    """The verdict on a claim by the answers of its tables: by the main runs, or by the variant in STAND_IN with more
    of the claim's pairs."""
    found = [
        Verdict(claim, [p for one in claim.differences for p in one.pairs(tables, way)], way) for way in ("", *STAND_IN)
    ]
    return max(found, key=lambda verdict: verdict.ours.there)  # the first of equal ones
