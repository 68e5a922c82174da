"""The plan of a table: the runs that its numbers need, and which measure of which run answers which number."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torso.config import Config, assign_all
from torso.papers.experiments.datasets import rooted
from torso.papers.experiments.reuse import TRAIN_ANEW
from torso.papers.experiments.selection import select
from torso.papers.tables.published import TRIED, PublishedNumber, Recipe
from torso.papers.tables.settings import ELSEWHERE, Refusal, Wanted, preset, resolve

_SHORT = {"shards": "s", "fraction": "f", "local_epochs": "e", "alpha": "a", "clients": "n", "momentum": "m"}
"""Setting key → how folder names abbreviate it."""
WEIGHTS = "model.weights="
_UNNAMED = (ELSEWHERE | {"rounds", "partition"}) - {
    *("mu", "temperature_tau", "finetune_lr", "balanced_loss", "local_update_part", "server_update_part"),
}
"""Setting keys that folder names leave out."""


@dataclass(frozen=True)
class TableLine:
    """A published number that a run should answer, by the main run or by a variant."""

    published: PublishedNumber
    wanted: Wanted | Refusal
    variant: str = ""  # empty: the main run


@dataclass(frozen=True)
class TableRun:
    """A run of a table."""

    name: str  # of its folder
    config: Config
    answers: Mapping[int, str]  # place of a line → the measure that answers it

    @property
    def seed(self) -> int:
        return self.config.run.seed


@dataclass(frozen=True)
class TablePlan:
    """The lines of a table and the runs that answer them."""

    recipe: Recipe
    lines: tuple[TableLine, ...]
    runs: tuple[TableRun, ...]  # runs that train alike stand next to each other
    chosen: frozenset[int] = field(default_factory=frozenset)  # places of the lines that --only selects

    @property
    def refused(self) -> dict[str, int]:
        """Reason → how many of the selected lines cannot be run."""
        reasons = [self.lines[i].wanted for i in sorted(self.chosen)]
        names = [reason.reason for reason in reasons if isinstance(reason, Refusal)]
        return {name: names.count(name) for name in dict.fromkeys(names)}


def lines_of(recipe: Recipe, weights: bool = False) -> tuple[TableLine, ...]:
    """The lines of a table: for every number its main run, followed by its variants. `weights`: the user gives a file
    of weights."""
    found: list[TableLine] = []
    for number in recipe.numbers:
        found.append(TableLine(number, resolve(recipe, number, weights=weights)))
        always = recipe.again if recipe.deals(number) or not recipe.dealt else ()
        own = recipe.label(number.algorithm).second_lines
        seconds = (*always, *own, *recipe.tried) if isinstance(found[-1].wanted, Wanted) else ()
        found += [
            TableLine(number, resolve(recipe, number, second, weights), second.name)
            for second in seconds
            if second.covers(number)
        ]
    return tuple(found)


def plan(
    recipe: Recipe,
    only: str = "",
    seeds: int = 1,
    sets: Sequence[str] = (),
    roots: Mapping[str, str] | None = None,
    tried: bool = True,
) -> TablePlan:
    """The plan of a table. Names and configs do not depend on `only`, so a part of a table can be run first.

    `only`: the condition of --only. `roots`: data source → data.root. `tried`: include the trials of the recipe."""
    whole = _grouped(recipe, tuple(sets))
    lines = whole.lines
    keys = dict.fromkeys([k for line in lines for k in line.published.setting] + ["method", "metric"])
    accepted = f"{', '.join(keys)}, dataset, model, variant"
    found = select(only, lines, _values, recipe.name, accepted)
    chosen = frozenset(place for place in found if tried or not lines[place].variant.startswith(TRIED))
    first = Config.load(None, sets).run.seed
    runs = [
        _run(recipe, lines, places, f"{name}-seed{seed}", (*sets, f"run.seed={seed}"), roots or {})
        for name, places in whole.groups
        if not chosen.isdisjoint(places)
        for seed in range(first, first + seeds)
    ]
    return TablePlan(recipe, lines, tuple(sorted(runs, key=_order)), chosen)


@dataclass(frozen=True)
class _Grouped:
    """All lines of a table and, for each run, its name and the places of the lines that it answers."""

    lines: tuple[TableLine, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]


@lru_cache(maxsize=256)
def _grouped(recipe: Recipe, sets: tuple[str, ...]) -> _Grouped:
    """The lines of a table, grouped by the run that answers them. Cached, because pages and commands ask for the same
    table again and again."""
    lines = lines_of(recipe, weights=any(said.startswith(WEIGHTS) for said in sets))
    groups: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        if isinstance(line.wanted, Wanted):
            config, measure = _config(recipe, line.wanted.sets, sets), line.wanted.measure
            apart = measure if measure in TRAIN_ANEW else ""
            groups.setdefault(f"{_key(config)} {apart}", []).append(place)
    names = _names(lines, list(groups.values()))
    return _Grouped(lines, tuple(zip(names, map(tuple, groups.values()), strict=True)))


def _order(run: TableRun) -> tuple[Any, ...]:
    """A key to sort runs by. Runs that can share the steps of a device become neighbours: same network, method and
    local work. Of runs with the same rounds, the one at which others begin comes first."""
    config = run.config
    alike = (config.data.source, config.model.body, config.method.name, config.train.local_epochs, config.train.rounds)
    last = not TRAIN_ANEW.isdisjoint(config.measure.names)
    return (*alike, config.train.fraction, run.seed, config.data.shards, last, run.name)


@lru_cache(maxsize=4096)
def _resolved(common: str, said: tuple[str, ...]) -> Config:
    return Config(**assign_all(json.loads(common), said))


def _config(recipe: Recipe, said: Sequence[str], sets: Sequence[str]) -> Config:
    """The config of a run: the recipe's common part, then the settings of the number, then those of the user."""
    config = _resolved(json.dumps(recipe.config), (*said, "run.checkpoint_every=0", *sets))
    if config.method.share.part == "none" and config.train.fraction != 1.0:  # all clients train in every round
        return config.but("train.fraction=1.0")
    return config


def _key(config: Config) -> str:
    """A key that is equal for lines that one run can answer: the config without its measures."""
    tree = config.as_tree()
    tree["measure"].pop("names")
    return json.dumps(tree, sort_keys=True)


def _run(
    recipe: Recipe,
    lines: Sequence[TableLine],
    places: Sequence[int],
    name: str,
    sets: Sequence[str],
    roots: Mapping[str, str],
) -> TableRun:
    """The run of the lines at `places`. If they need several numbers of epochs of fine-tuning, `base` is measured as
    usual and the others as a sweep (`measure@epochs`)."""
    wanted = {place: w for place in places if isinstance(w := lines[place].wanted, Wanted)}
    epochs = sorted({w.epochs for w in wanted.values() if w.epochs})
    usual = recipe.config.get("personalize", {}).get("epochs", 5)
    base = usual if usual in epochs or not epochs else epochs[-1]
    answers = {
        place: f"{w.measure}@{w.epochs}" if w.epochs not in (0, base) else w.measure for place, w in wanted.items()
    }
    measured = dict.fromkeys(w.measure for w in wanted.values() if not w.measure.startswith("cost."))
    said = (
        *wanted[places[0]].sets,
        f"personalize.epochs={base}",
        f"personalize.sweep={[e for e in epochs if e != base]}",
        f"measure.names={json.dumps(list(measured) or ['generic'])}",
    )
    return TableRun(name, rooted(_config(recipe, said, sets), roots), answers)


def _names(lines: Sequence[TableLine], groups: Sequence[Sequence[int]]) -> list[str]:
    """A different name for each run: the method, and the settings in which the runs of the table differ."""
    firsts = [lines[places[0]] for places in groups]
    keys = list(dict.fromkeys(key for line in firsts for key in line.published.setting if key not in _UNNAMED))
    keys = [key for key in (*keys, "dataset", "model") if len({str(line.published.value(key)) for line in firsts}) > 1]
    names: list[str] = []
    for line in firsts:
        parts = [
            f"{_SHORT.get(key, '' if isinstance(value, str) else key)}{value}"
            for key in keys
            if (value := line.published.value(key)) is not None
        ]
        method = preset(line.published)
        if line.variant:
            method += "-tried" if line.variant.startswith(TRIED) else "-paper-bug"
        names.append(re.sub(r"[^a-z0-9.]+", "-", "-".join([method, *parts]).lower()).strip("-"))
    return [name if names.count(name) == 1 else f"{name}-{names[:i].count(name) + 1}" for i, name in enumerate(names)]


def _values(line: TableLine, key: str) -> tuple[Any, ...]:
    """The values of a line for a condition of --only.

    A method has two: its name in the paper and its preset. A variant also has two: the word for all of its kind, and
    its name with hyphens, because the lines of a plan file are split at spaces."""
    if key in ("method", "algorithm"):
        return (line.published.algorithm, preset(line.published))
    if key == "variant":
        if not line.variant:
            return ("none",)
        kind = "tried" if line.variant.startswith(TRIED) else "paper-bug"
        return (kind, line.variant.removeprefix(TRIED).replace(" ", "-"))
    value = line.published.value(key)
    return () if value is None else (value,)
