"""The rows of board.json: what is known of each method in each setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torso.measure.fairness import worst
from torso.papers.board.contestants import Contestant
from torso.papers.board.runs import BoardRuns
from torso.papers.board.trials import BoardMethod, Trial
from torso.papers.experiments.datasets import file_of
from torso.papers.experiments.provenance import changed, machine_of, merged_machines
from torso.papers.tables.answers import over_seeds
from torso.results.result import Result

BOARD = "board.json"
Row = dict[str, Any]

MEASURED: Mapping[str, Callable[[Result], float]] = {
    "generic": lambda found: found.accuracy["generic"].mean,
    "personal": lambda found: found.accuracy["personalized"].mean,
    "initial": lambda found: found.accuracy["initial"].mean,
    "new_client": lambda found: found.accuracy["new_after"].mean,
    "new_client_before": lambda found: found.accuracy["new_before"].mean,
    "worst_tenth": lambda found: worst(found.accuracy["personalized"].clients),
    "megabytes": lambda found: (found.cost.bytes_up + found.cost.bytes_down) / 1e6,
    "forward_passes": lambda found: float(found.cost.forward_passes),
}
"""Column of the board → its value in a final run. The worst tenth is of the personal models."""


def key_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Setting and method of a row."""
    return str(row["setting"]), str(row["method"])


def rows(contestants: Sequence[Contestant], runs: BoardRuns) -> list[Row]:
    """A row for each contestant."""
    return [_row(one, runs) for one in contestants]


def empty_row(setting: str, entry: BoardMethod) -> Row:
    """The row of a method that has not been run."""
    return {
        "setting": setting,
        "method": entry.name,
        "new": entry.new,
        "sets": list(entry.sets),
        "chosen": None,
        "tried": [],
        "seeds": [],
        **dict.fromkeys(MEASURED),
        "status": "not run",
    }


def _row(one: Contestant, runs: BoardRuns) -> Row:
    point = runs.chosen(one)
    if point is not None and not one.finals and one.is_judged(point, 1):
        return {**(one.published or {}), "tried": runs.tried(one)}
    known = {"chosen": point, "tried": runs.tried(one), "status": _choosing(one, runs)}
    row = empty_row(one.setting, one.entry) | known
    if row["tried"]:
        row["tuned_with"] = one.tuned_with
    finals = {seed: (t, runs.results[t.name]) for seed, t in sorted(one.finals.items()) if t.name in runs.results}
    if point is None or not finals:
        return row
    good = {seed: found for seed, (_, found) in finals.items() if isinstance(found, Result) and found.ok}
    bad = [_status(found) for seed, (_, found) in finals.items() if seed not in good]
    row |= {"seeds": list(good), "status": bad[0] if bad else "ok"}
    if good:
        row |= {name: over_seeds({s: read(found) for s, found in good.items()}) for name, read in MEASURED.items()}
        if tuple(good) not in one.facts:  # board.json is written after every run, so this is computed once
            one.facts[tuple(good)] = _facts([finals[seed][0] for seed in good], next(iter(good.values())), runs)
        row |= one.facts[tuple(good)]
    return row


def _facts(judged: Sequence[Trial], first: Result, runs: BoardRuns) -> Row:
    """Where the final runs come from: config, machine, versions, data."""
    config = judged[0].config
    return {
        "config": changed(config),
        "machine": merged_machines(machine_of(runs.folder / trial.name) for trial in judged),
        "versions": dict(first.versions),
        "data": file_of(config.data.source, config.data.root),
    }


def _choosing(one: Contestant, runs: BoardRuns) -> str:
    """The status of a contestant without final runs."""
    missing = runs.missing(one)
    if len(missing) == len(one.tuning) and not any(t.name in runs.results for t in missing):
        return "not run"
    broken = [_status(runs.results[t.name]) for t in missing if t.name in runs.results]
    if broken:
        return broken[0]
    if missing:
        return f"choosing: {len(one.tuning) - len(missing)} of {len(one.tuning)} runs"
    return "chosen" if runs.chosen(one) is not None else "failed: diverged at every point of the grid"


def _status(found: Result | Exception) -> str:
    return found.status if isinstance(found, Result) else f"failed: {found}"
