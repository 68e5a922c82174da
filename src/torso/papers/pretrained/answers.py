"""The cells as answers for the papers' claims, and the paper's numbers for the same methods and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from torso.papers.experiments.result_files import Record
from torso.papers.pretrained.definition import Evidence, PlannedMethod, Setting, load
from torso.papers.tables.answers import Answer, over_seeds
from torso.papers.tables.published import PublishedNumber, recipe

EARLY = 1 / 6  # share of the rounds after which accuracy counts as early
_TABLES = ("fedncm/2", "fedncm/3", "fedncm/6", "fedncm/8")


def own_answers(records: Mapping[str, Record], evidence: Evidence | None = None) -> list[Answer]:
    """An answer for each cell and metric, without published numbers."""
    known = evidence or load()
    cells = [
        (cell, known.settings.get(cell["setting"]), known.methods.get(cell["method"])) for cell in records.values()
    ]
    return [
        answer
        for record, setting, method in cells
        if setting is not None and method is not None and record["runs"]
        for answer in _answers(record, setting, method)
    ]


def _answers(record: Record, setting: Setting, method: PlannedMethod) -> list[Answer]:
    failed = {seed: run["status"] for seed, run in record["runs"].items() if run["status"] != "ok"}
    common: Answer = {
        "paper": "FedNCM",
        "table": "pretrained",
        "dataset": setting.dataset,
        "model": record["config"].get("model.body", ""),
        "setting": {**setting.keys, "fl_optimizer": method.optimizer},
        "method": method.label,
        "variant": "",
        "published": {},
        "status": next(iter(failed.values()), "ok"),
        **({"failed": failed} if failed else {}),
    }
    return [
        {**common, "metric": metric, "ours": over_seeds(values) if values else None}
        for metric, values in _metrics(record).items()
    ]


def _metrics(record: Record) -> dict[str, dict[int, float]]:
    """Metric → seed → value, for the seeds that did not diverge."""
    ok = {int(seed): run for seed, run in record["runs"].items() if run["status"] == "ok"}
    found = {
        "accuracy_%": {seed: run["accuracy"]["generic"] for seed, run in ok.items() if "generic" in run["accuracy"]},
        "early_%": {seed: early for seed, run in ok.items() if (early := early_accuracy(run)) is not None},
        "total_communication_GB": {seed: (run["bytes_up"] + run["bytes_down"]) / 1e9 for seed, run in ok.items()},
    }
    return {metric: values for metric, values in found.items() if values or metric == "accuracy_%"}


def early_accuracy(run: Mapping[str, Any]) -> float | None:
    """The first measurement after a sixth of the rounds; None if only the last round was measured after it."""
    rounds = run["history"][-1][0] if run["history"] else 0
    there = [accuracy for at, accuracy, *_ in run["history"] if rounds * EARLY <= at < rounds]
    return float(there[0]) if there else None


def accuracies(record: Record, measure: str = "generic") -> list[float]:
    """The accuracies of a cell, one for each seed that did not diverge."""
    ok = [run["accuracy"] for run in record["runs"].values() if run["status"] == "ok"]
    return [found[measure] for found in ok if measure in found]


def mean_over_seeds(record: Record, key: str) -> float:
    """The mean over seeds of a number that every run has, for example forward_passes."""
    return fmean(run[key] for run in record["runs"].values())


@cache
def _numbers() -> Sequence[PublishedNumber]:
    return [number for name in _TABLES for number in recipe(name).numbers if number.metric == "accuracy_%"]


def published(setting: Setting, method: PlannedMethod) -> dict[str, float]:
    """The paper's numbers for this method in this setting: its network → accuracy."""
    found: dict[str, float] = {}
    for number in _numbers() if setting.published else ():
        usual = number.setting.get("fl_optimizer", "FedAvg")
        same = (number.dataset, number.algorithm, usual) == (setting.published, method.label, method.optimizer)
        if same and number.mean is not None:
            found.setdefault(number.model.partition(" ")[0], number.mean)
    return found
