"""The answers of a table: our result beside the published number, one record for each line of table.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.papers.experiments.datasets import file_of
from torso.papers.experiments.outcome import is_divergence
from torso.papers.experiments.provenance import changed, merged_machines
from torso.papers.tables.plan import TablePlan
from torso.papers.tables.settings import REASONS, Refusal
from torso.results.result import Result

Answer = dict[str, Any]


@dataclass(frozen=True)
class RunAnswers:
    """What one run measured for the lines of a table."""

    seed: int
    status: str
    values: Mapping[int, tuple[float, float]]  # place of a line → mean and standard deviation; empty if the run failed
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    data: str = ""  # name of the data file
    machine: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


def read(result: Result, config: Config, answers: Mapping[int, str], where: Mapping[str, str]) -> RunAnswers:
    """The answers of a finished run. `answers`: place of a line → measure. `where`: the machine."""
    values = {place: _value(result, name) for place, name in answers.items()} if result.ok else {}
    data = file_of(config.data.source, config.data.root)
    known = (result.versions, changed(config), data, where, result.sha256)
    return RunAnswers(result.seed, result.status, values, *known)


def failed(error: Exception, config: Config) -> RunAnswers:
    """The answers of a run that broke: no values, and the error as status."""
    return RunAnswers(config.run.seed, f"failed: {error}", {}, {}, changed(config))


def _value(result: Result, name: str) -> tuple[float, float]:
    """Mean and standard deviation of a measure or a cost."""
    if name == "cost.forward_passes":
        return float(result.cost.forward_passes), 0.0
    if name == "cost.gigabytes":
        return (result.cost.bytes_up + result.cost.bytes_down) / 1e9, 0.0
    if name not in result.accuracy:
        raise RequestError(f"{str(result.folder)!r} has no measure {name!r}: it was run with another recipe.")
    return result.accuracy[name].mean, result.accuracy[name].std


def answers_of(plan: TablePlan, found: Sequence[Mapping[int, RunAnswers]]) -> list[Answer]:
    """The answers of the selected lines. `found`: for each line, seed → the answers of the run."""
    return [_answer(plan, place, found[place]) for place in sorted(plan.chosen)]


def _answer(plan: TablePlan, place: int, by_seed: Mapping[int, RunAnswers]) -> Answer:
    line = plan.lines[place]
    number, label = line.published, plan.recipe.label(line.published.algorithm)
    answer: Answer = {
        "paper": number.paper,
        "table": number.table,
        "dataset": number.dataset,
        "model": number.model,
        "setting": dict(number.setting),
        "method": number.algorithm,
        "variant": line.variant,
        "metric": number.metric,
        "published": {"mean": number.mean, "std": number.std, "std_over": number.std_over, "note": number.note},
        "ours": None,
        "status": "not run",
    }
    if isinstance(line.wanted, Refusal):
        return {**answer, "status": f"cannot run: {line.wanted.reason}", "why": REASONS[line.wanted.reason]}
    if label.bug and not line.variant:
        answer["not_comparable"] = label.bug
    if not by_seed:
        return answer
    by_seed = dict(sorted(by_seed.items()))  # on a cluster runs end in any order
    values = {seed: found.values[place] for seed, found in by_seed.items() if place in found.values}
    bad = {str(seed): found.status for seed, found in by_seed.items() if place not in found.values}
    answer["status"] = next(iter(bad.values()), "ok")
    answer |= _origin(by_seed)
    if bad:
        answer["failed"] = bad
    if values:
        answer["ours"] = _ours(number.std_over, values)
    return answer


def _origin(by_seed: Mapping[int, RunAnswers]) -> Answer:
    """Where a number comes from: config, machine, versions, data and, if they are known, SHA-256 by seed."""
    first = next(iter(by_seed.values()))
    origin: Answer = {
        "config": dict(first.config),
        "machine": merged_machines(found.machine for found in by_seed.values()),
        "versions": dict(first.versions),
        "data": first.data,
    }
    sums = {str(seed): dict(found.sha256) for seed, found in by_seed.items() if found.sha256}
    if sums:
        origin["sha256"] = sums
    return origin


def failures(answer: Answer) -> list[str]:
    """Why runs of a line failed: one message for each seed."""
    status = str(answer["status"])
    return list(answer.get("failed", {}).values()) or [status] * status.startswith("failed")


def diverged(answer: Answer) -> bool:
    """Whether training diverged at any seed."""
    return any(map(is_divergence, failures(answer)))


def _ours(std_over: str | None, values: Mapping[int, tuple[float, float]]) -> Answer:
    """Mean over seeds, standard deviation, and the value of each seed.

    The standard deviation is over clients (root of the mean variance) or over seeds, as the paper's is."""
    found = over_seeds({seed: mean for seed, (mean, _) in values.items()})
    if std_over == "clients":
        spread = math.sqrt(fmean(std**2 for _, std in values.values()) + pstdev(found["seeds"].values()) ** 2)
        found["std"] = round(spread, 4)
    return found


def over_seeds(values: Mapping[int, float]) -> Answer:
    """Mean, standard deviation over seeds (None with one seed), and the value of each seed."""
    means = {seed: round(value, 4) for seed, value in values.items()}
    std = round(stdev(means.values()), 4) if len(means) > 1 else None
    return {"mean": round(fmean(means.values()), 4), "std": std, "seeds": {str(s): m for s, m in means.items()}}
