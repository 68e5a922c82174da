"""The json file of a method under an attack: for each rule its config, and the results at each seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torso.measure.base import Accuracy
from torso.measure.fairness import quantiles, worst
from torso.papers.experiments.provenance import machine_of
from torso.papers.experiments.result_files import Record, data_of, read_all, write_record
from torso.papers.robust.cells import Cell, Trial
from torso.results.result import Result

HONEST = "benign"  # the measure of clients that do not attack


def read(folder: Path) -> dict[str, Record]:
    """Name of a file → its record. Files of other kinds (lengths.json) are left out."""
    return {name: record for name, record in read_all(folder).items() if "rules" in record}


def knows(records: Mapping[str, Record], trial: Trial) -> bool:
    """Whether the files have the result of this run, with the same config."""
    rules = records.get(trial.cell.file, {"rules": {}})["rules"]
    found = rules.get(trial.cell.rule, {"runs": {}})
    return bool(found["runs"].get(str(trial.seed)) and found["key"] == trial.key)


def empty(cell: Cell) -> Record:
    return {"method": cell.method, "attack": cell.attack, "origins": [], "rules": {}}


def note(record: Record, trial: Trial, result: Result, folder: Path) -> None:
    """Add the result of a run. Results of other configs are dropped."""
    found = record["rules"].get(trial.cell.rule)
    if found is None or found["key"] != trial.key:
        found = {"key": trial.key, "config": trial.changes, "runs": {}}
    found["runs"][str(trial.seed)] = {
        "status": result.status,
        **{name: round(accuracy.mean, 3) for name, accuracy in result.accuracy.items()},
        **_spread(result.accuracy.get(HONEST)),
        "malicious": len(result.malicious),
        "seconds": {name: round(value, 2) for name, value in result.seconds.items()},
        "origin": _origin(record, trial, result, folder),
    }
    found["runs"] = dict(sorted(found["runs"].items()))
    record["rules"][trial.cell.rule] = found


def _spread(honest: Accuracy | None) -> Record:
    """The worst tenth and the quantiles over honest clients."""
    if honest is None or not honest.n:
        return {}
    return {
        "worst_tenth": round(worst(honest.clients), 3),
        "quantiles": [round(value, 2) for value in quantiles(honest.clients)],
    }


def _origin(record: Record, trial: Trial, result: Result, folder: Path) -> int:
    """The place of the run's origin (machine, versions, data) in the file's list of origins. A new one is added."""
    data = data_of(trial.config, folder)
    said = {
        "machine": machine_of(folder),
        "versions": dict(result.versions),
        "data": {key: data[key] for key in ("file", "sha256")},
    }
    if said not in record["origins"]:
        record["origins"].append(said)
    return int(record["origins"].index(said))


def write(folder: Path, record: Record) -> None:
    write_record(folder / f"{record['method']}-{record['attack']}.json", record)
