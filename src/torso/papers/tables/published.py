"""The published numbers, table by table, as the papers print them, and the recipes that run them again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torso.errors import RequestError, did_you_mean

TABLES = Path(__file__).parent
PAPERS: Mapping[str, str] = {"fedbabu": "FedBABU", "fedrod": "Fed-RoD", "fedncm": "FedNCM", "fedfn": "FedFN"}
"""How a command spells a paper → its name."""
TRIED = "tried: "
"""The names of trials begin with this. Trials are variants that tables do not show."""


@dataclass(frozen=True)
class PublishedNumber:
    """A number of a paper's table."""

    paper: str
    table: str
    dataset: str
    model: str
    setting: Mapping[str, Any]
    algorithm: str
    metric: str
    mean: float | None  # None: the paper reports that training failed
    std: float | None
    std_over: str | None  # "clients", "5 seeds"
    source: str
    note: str = ""  # a doubt about the number

    def value(self, key: str) -> Any:
        """The value of a key of the setting or of the number itself; None if there is no key of this name."""
        return self.setting.get(key, getattr(self, key, None) if key in _OWN else None)


_OWN = ("dataset", "model", "algorithm", "metric")


@dataclass(frozen=True)
class Label:
    """What a recipe says of a method of its table, beyond the settings of its numbers."""

    sets: tuple[str, ...] = ()  # KEY=VALUE
    answers: Mapping[str, str] = field(default_factory=dict)  # metric → measure, if it is not the usual one
    why: str = ""  # a note for the reader
    bug: str = ""  # the mistake behind the published number: ours is not expected to agree
    second_lines: tuple[Variant, ...] = ()  # variants of the method's numbers, for example with the mistake


@dataclass(frozen=True)
class Variant:
    """A variant: another way in which numbers are run, and for which numbers."""

    sets: tuple[str, ...] = ()  # further settings
    answers: Mapping[str, str] = field(default_factory=dict)  # metric → another measure
    name: str = "as the paper's code"
    metrics: tuple[str, ...] = ()  # of the numbers that have the variant; empty: all
    methods: tuple[str, ...] = ()  # likewise
    where: Mapping[str, Any] = field(default_factory=dict)  # key → value that the number's setting must have

    def covers(self, number: PublishedNumber) -> bool:
        """Whether the number has this variant."""
        if self.metrics and number.metric not in self.metrics:
            return False
        if self.methods and number.algorithm not in self.methods:
            return False
        return all(number.value(key) == value for key, value in self.where.items())


@dataclass(frozen=True, eq=False)  # each table has one object, by which plans are cached
class Recipe:
    """How a table is run again and laid out: the config that its runs have in common, labels, caveats, variants."""

    paper: str  # as a command spells it
    table: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    config: Mapping[str, Any]
    datasets: Mapping[str, tuple[str, ...]]  # data set → settings
    labels: Mapping[str, Label]
    caveats: tuple[str, ...]
    dealt: tuple[str, ...] = ()  # further settings of numbers with a Dirichlet partition
    again: tuple[Variant, ...] = ()  # variants for all methods: of the numbers that `dealt` is for, if it has any
    tried: tuple[Variant, ...] = ()  # trials: one change at a time, shown on their own page (pages/tried.py)

    def deals(self, number: PublishedNumber) -> bool:
        """Whether the settings in `dealt` apply to this number."""
        return bool(self.dealt) and str(number.setting.get("partition", "")).startswith("dirichlet")

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}"

    @cached_property
    def numbers(self) -> tuple[PublishedNumber, ...]:
        lines = (TABLES / self.paper / f"{self.table}.jsonl").read_text(encoding="utf-8").splitlines()
        return tuple(PublishedNumber(**json.loads(line)) for line in lines)

    def label(self, algorithm: str) -> Label:
        return self.labels.get(algorithm, Label())


def names() -> tuple[str, ...]:
    """The names of all tables, in the papers' order."""
    found = [(path.parent.name, path.stem) for path in TABLES.glob("*/*.jsonl")]
    places = {paper: place for place, paper in enumerate(PAPERS)}
    found.sort(key=lambda it: (places[it[0]], not it[1].isdigit(), int(it[1].lstrip("a"))))
    return tuple(f"{paper}/{table}" for paper, table in found)


def in_short(paper: str) -> str:
    """One or two sentences on what came out of a paper's tables."""
    return str(tomllib.loads((TABLES / paper / "paper.toml").read_text("utf-8"))["in_short"])


@cache
def recipe(name: str) -> Recipe:
    """The recipe of a table: TABLE.toml over the paper's paper.toml."""
    known = names()
    paper, _, table = name.lower().partition("/")
    if f"{paper}/{table}" not in known:
        of_paper = [other.partition("/")[2] for other in known if other.startswith(f"{paper}/")]
        some = f"{paper}/ has {', '.join(of_paper)}" if of_paper else f"papers: {', '.join(PAPERS)}"
        hint = did_you_mean(name.lower(), known)
        raise RequestError(f"table {name!r} is unknown{hint} Accepted: PAPER/TABLE, as `torso papers` lists; {some}")
    common, own = (tomllib.loads((TABLES / paper / f"{file}.toml").read_text("utf-8")) for file in ("paper", table))
    labels = {key: _label(value) for key, value in {**common.get("labels", {}), **own.get("labels", {})}.items()}
    return Recipe(
        paper=paper,
        table=table,
        title=own["title"],
        rows=tuple(own["rows"]),
        columns=tuple(own["columns"]),
        config=_over(common.get("config", {}), own.get("config", {})),
        datasets={key: tuple(sets) for key, sets in common["datasets"].items()},
        labels=labels,
        caveats=(*common.get("caveats", ()), *own.get("caveats", ())),
        dealt=tuple(common.get("dealt", ())),
        again=tuple(map(_variant, _listed(common.get("again", ())))),
        tried=tuple(_variant({**line, "name": TRIED + line["name"]}) for line in own.get("tried", ())),
    )


def _label(tree: Mapping[str, Any]) -> Label:
    return Label(
        sets=tuple(tree.get("sets", ())),
        answers=tree.get("answers", {}),
        why=tree.get("why", ""),
        bug=tree.get("bug", ""),
        second_lines=tuple(map(_variant, _listed(tree.get("again", ())))),
    )


def _listed(said: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The variants of a key `again`, which has one variant or a list."""
    return (said,) if isinstance(said, Mapping) else said


def _variant(tree: Mapping[str, Any]) -> Variant:
    sets, metrics, methods = (tuple(tree.get(key, ())) for key in ("sets", "metrics", "methods"))
    name, where = tree.get("name", Variant.name), tree.get("where", {})
    return Variant(sets, tree.get("answers", {}), name, metrics, methods, where)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged; the values of `above` replace those of `below`."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
