"""The json file of a cell: the rates that were tried and, for each seed, results, accuracy over rounds and origin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.papers.experiments.provenance import machine_of
from torso.papers.experiments.result_files import Record, data_of, read_all, write_record
from torso.papers.pretrained.cells import Cell, Point, Trial
from torso.results.history import read_lines, rounds_in
from torso.results.result import Result

SPENT = ("bytes_up", "bytes_down", "forward_passes")


read = read_all


def write(folder: Path, record: Record) -> None:
    write_record(folder / f"{record['setting']}-{record['method']}.json", record)


def empty(cell: Cell) -> Record:
    return {"setting": cell.setting, "method": cell.method, "tuning": [], "runs": {}}


def knows(record: Record | None, trial: Trial) -> bool:
    """Whether the record has the result of this run, with the same config."""
    if record is None:
        return False
    if trial.kind == "final":
        return bool(record["runs"].get(str(trial.seed), {}).get("key") == trial.key)
    return any(one["key"] == trial.key for one in record["tuning"])


def chosen(record: Record | None, trials: Sequence[Trial], points: Sequence[Point]) -> Point | None:
    """The point that is best on validation data; None until all have been tried, or if all diverged.

    `trials`: the tuning runs. A cell without tuning runs has one point."""
    if not trials:
        return points[0]
    if record is None or not all(knows(record, trial) for trial in trials):
        return None
    by_key = {one["key"]: one for one in record["tuning"]}
    scores = [_score(by_key[trial.key]) for trial in trials]
    best = max(scores)
    return None if math.isinf(best) else trials[scores.index(best)].point


def _score(tried: Mapping[str, Any]) -> float:
    return sum(tried["validation"].values()) if tried["validation"] else -math.inf


def note(record: Record, trial: Trial, result: Result, folder: Path) -> None:
    """Add the result of a run. Results of other configs are dropped."""
    if trial.kind == "tuning":
        _note_tuning(record, trial, result)
        return
    record["config"] = trial.changes
    record["chosen"] = dict(trial.point)
    same = {seed: run for seed, run in record["runs"].items() if run["key"] == trial.key}
    same[str(trial.seed)] = {
        "key": trial.key,
        "status": result.status,
        "accuracy": {name: round(found.mean, 4) for name, found in result.accuracy.items()},
        **{key: getattr(result.cost, key) for key in SPENT},
        **({"privacy": dict(result.privacy)} if result.privacy else {}),
        "history": history(folder, result),
        "seconds": {name: round(value, 2) for name, value in result.seconds.items()},
        "machine": machine_of(folder),
        "versions": dict(result.versions),
        "data": data_of(trial.config, folder),
    }
    record["runs"] = dict(sorted(same.items()))


def _note_tuning(record: Record, trial: Trial, result: Result) -> None:
    validation = {name: round(found.mean, 4) for name, found in result.accuracy.items()} if result.ok else None
    tried = {
        "key": trial.key,
        "point": dict(trial.point),
        "rounds": result.rounds,
        "status": result.status,
        "validation": validation,
    }
    record["tuning"] = [one for one in record["tuning"] if one["point"] != tried["point"]] + [tried]


def history(folder: Path, result: Result) -> list[list[float]]:
    """[round, generic accuracy, bytes so far, forward passes so far] at each measurement, the last round included."""
    found = [
        [line["round"], round(line["accuracy"]["generic"]["mean"], 3), _bytes(line), line["forward_passes"]]
        for line in rounds_in(read_lines(folder))
        if "generic" in line.get("accuracy", {})
    ]
    if "generic" in result.accuracy:
        spent = [_bytes(vars(result.cost)), result.cost.forward_passes]
        found.append([result.rounds, round(result.accuracy["generic"].mean, 3), *spent])
    return found


def _bytes(spent: Mapping[str, int]) -> int:
    return spent["bytes_up"] + spent["bytes_down"]
