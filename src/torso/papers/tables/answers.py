"""The answers of a table's runs: table.json has one for each line, ours beside the published number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.papers.experiments.datasets import file_of
from torso.papers.experiments.provenance import changed, one_after_another
from torso.papers.tables.plan import TablePlan
from torso.papers.tables.settings import REASONS, Refusal
from torso.results.result import Result

Answer = dict[str, Any]


@dataclass(frozen=True)
class RunAnswers:
    """What one run measured. `values`: place of a line → mean and standard deviation; empty where the run failed."""

    seed: int
    status: str
    values: Mapping[int, tuple[float, float]]
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    data: str = ""  # name of the data file
    machine: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


def read(result: Result, config: Config, answers: Mapping[int, str], where: Mapping[str, str]) -> RunAnswers:
    values = {place: _value(result, name) for place, name in answers.items()} if result.ok else {}
    data = file_of(config.data.source, config.data.root)
    known = (result.versions, changed(config), data, where, result.sha256)
    return RunAnswers(result.seed, result.status, values, *known)


def failed(error: Exception, config: Config) -> RunAnswers:
    return RunAnswers(config.run.seed, f"failed: {error}", {}, {}, changed(config))


def _value(result: Result, name: str) -> tuple[float, float]:
    if name == "cost.forward_passes":
        return float(result.cost.forward_passes), 0.0
    if name == "cost.gigabytes":
        return (result.cost.bytes_up + result.cost.bytes_down) / 1e9, 0.0
    if name not in result.accuracy:
        raise RequestError(f"{str(result.folder)!r} has no measure {name!r}; it was run with another recipe.")
    return result.accuracy[name].mean, result.accuracy[name].std


def answers_of(plan: TablePlan, found: Sequence[Mapping[int, RunAnswers]]) -> list[Answer]:
    """The answers of the selected lines. `found`: for each line, seed → what the run measured."""
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
    first = next(iter(by_seed.values()))
    known = {
        "config": dict(first.config),
        "machine": one_after_another(found.machine for found in by_seed.values()),
        "versions": dict(first.versions),
        "data": first.data,
        **(
            {"sha256": sums} if (sums := {str(seed): dict(f.sha256) for seed, f in by_seed.items() if f.sha256}) else {}
        ),
    }
    values = {seed: found.values[place] for seed, found in by_seed.items() if place in found.values}
    bad = {str(seed): found.status for seed, found in by_seed.items() if place not in found.values}
    seen = {**answer, "status": next(iter(bad.values()), "ok"), **known, **({"failed": bad} if bad else {})}
    return {**seen, "ours": _ours(number.std_over, values)} if values else seen


def failures(answer: Answer) -> list[str]:
    """Why seeds of a line failed: one message per seed."""
    status = str(answer["status"])
    return list(answer.get("failed", {}).values()) or [status] * status.startswith("failed")


def diverged(answer: Answer) -> bool:
    """Whether training diverged at any seed."""
    return any(map(is_divergence, failures(answer)))


def is_divergence(why: str) -> bool:
    """Whether training failed, not the machine."""
    return "non-finite" in why


def _ours(std_over: str | None, values: Mapping[int, tuple[float, float]]) -> Answer:
    """Mean over seeds. `std` is over clients (root of the mean variance) or over seeds, as in the paper. `seeds` has
    the value of each seed."""
    found = over_seeds({seed: mean for seed, (mean, _) in values.items()})
    if std_over == "clients":
        spread = math.sqrt(fmean(std**2 for _, std in values.values()) + pstdev(found["seeds"].values()) ** 2)
        found["std"] = round(spread, 4)
    return found


def over_seeds(values: Mapping[int, float]) -> Answer:
    """Mean, standard deviation (None with one seed), and the value of each seed."""
    means = {seed: round(value, 4) for seed, value in values.items()}
    std = round(stdev(means.values()), 4) if len(means) > 1 else None
    return {"mean": round(fmean(means.values()), 4), "std": std, "seeds": {str(s): m for s, m in means.items()}}
