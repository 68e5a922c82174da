"""The file of a cell: the rates that were tried, and for each seed what came out, over the rounds, and from what."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torso.papers.experiments.datasets import file_of
from torso.papers.experiments.provenance import machine_of
from torso.papers.pretrained.cells import Cell, Point, Trial
from torso.papers.tables.answers import is_divergence
from torso.results.checkpoint import write_text
from torso.results.data_file import DataFile
from torso.results.history import read_lines, rounds_in
from torso.results.result import Result

Record = dict[str, Any]
SPENT = ("bytes_up", "bytes_down", "forward_passes")


def read(folder: Path) -> dict[str, Record]:
    """Name of a cell → its record."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def write(folder: Path, record: Record) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write_text(folder / f"{record['setting']}-{record['method']}.json", _short_lists(text) + "\n")


def _short_lists(text: str) -> str:
    """Lists of numbers or words on one line each."""
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def empty(cell: Cell) -> Record:
    return {"setting": cell.setting, "method": cell.method, "tuning": [], "runs": {}}


def knows(record: Record | None, trial: Trial) -> bool:
    """Whether the record has the result of this very run."""
    if record is None:
        return False
    if trial.kind == "final":
        return bool(record["runs"].get(str(trial.seed), {}).get("key") == trial.key)
    return any(one["key"] == trial.key for one in record["tuning"])


def chosen(record: Record | None, trials: Sequence[Trial], points: Sequence[Point]) -> Point | None:
    """The point that is best on validation data; None until all have been tried. A cell without a grid has one."""
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
    """Add the result of a run. What came from another config is dropped."""
    if trial.kind == "tuning":
        _note_tuning(record, trial, result)
        return
    record["config"] = trial.told
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
        "data": data_of(trial, folder),
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


def is_final(result: Result) -> bool:
    """Whether the run tells something of the method: it ended well or diverged."""
    return result.ok or is_divergence(result.status)


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


def data_of(trial: Trial, folder: Path) -> dict[str, str]:
    """The data file with its SHA-256, and the SHA-256 of the fingerprint: who has which samples."""
    source, root = trial.config.data.source, Path(trial.config.data.root)
    name = file_of(source, str(root)) or root.name
    path = root if root.is_file() else root / name
    known = DataFile.read(folder)
    clients = json.dumps(known.fingerprint.as_json(), sort_keys=True) if known else ""
    return {
        "file": name or source,
        "sha256": _file_sum(path) if trial.config.data.root and path.is_file() else "",
        "clients_sha256": hashlib.sha256(clients.encode()).hexdigest(),
    }


@cache
def _file_sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
