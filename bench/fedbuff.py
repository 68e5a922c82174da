"""Slow clients: accuracy against simulated hours, synchronous rounds and FedBuff, for log-normal client speeds.

    python bench/fedbuff.py [--hours 80] [--seeds 3] [--sigmas 0.5,1,1.5] [--docs docs]

The same number of clients train at once in all runs. A run ends when its simulated hours are over. Prints tables. With
`--docs` they go into docs/faults.md, with the numbers (faults/fedbuff.json) and the picture (faults/fedbuff.svg).
`--again` makes page and picture from these numbers, without a run.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from torso import Config, Listener, run
from torso.measure import Accuracy
from torso.report.charts.drawing import WIDTH
from torso.report.charts.lines import LineOptions, Series, draw_lines
from torso.report.charts.svg import standing_alone, to_svg
from torso.runs.events import Stop
from torso.runs.rounds import Round
from torso.runs.run import Stopped
from torso.runs.speeds import hours_of

CLIENTS, AT_ONCE = 100, 20
PLAIN = "synchronous"
MARKS = "<!-- bench/fedbuff.py -->", "<!-- end -->"
RULES: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    "FedBuff, K = 10": ("method.server=fedbuff", "method.server.buffer=10"),
    "FedBuff, K = 5": ("method.server=fedbuff", "method.server.buffer=5"),
    "FedBuff, K = 5, a = 0": (
        "method.server=fedbuff",
        "method.server.buffer=5",
        "method.server.staleness=0.0",
    ),
}


@dataclass
class Clock(Listener):
    """A listener that notes accuracy by hours, and ends the run when its time is over."""

    hours: float
    slow: frozenset[int]  # the slowest fifth of the clients
    stop: Stop = field(default_factory=Stop)
    course: list[tuple[float, float]] = field(default_factory=list)  # hours, accuracy
    of_slow: list[tuple[float, float]] = field(default_factory=list)  # the same of the slowest fifth
    ages: list[int] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)  # whose uploads came

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.cost.hours > self.hours:
            self.stop.ask()
            return
        self.heard += round.participants
        self.ages += round.staleness
        if accuracy:
            found = accuracy["initial"]
            slow = [found.clients[k] for k in self.slow]
            self.course.append((round.cost.hours, found.mean))
            self.of_slow.append((round.cost.hours, fmean(value for value in slow if value is not None)))


def play(method: str, rule: str, sigma: float, seed: int, hours: float) -> Clock:
    """A run of `hours` simulated hours. It is measured each time as many uploads have come as clients train at once."""
    sets = RULES[rule]
    uploads = next((int(text.partition("buffer=")[2]) for text in sets if "buffer=" in text), AT_ONCE)
    config = Config.load(
        sets=[
            f"method.name={method}",
            *sets,
            f"data.clients={CLIENTS}",
            "data.shards=3",
            "data.balance=true",
            f"train.fraction={AT_ONCE / CLIENTS}",
            "train.rounds=100000",
            "train.schedule=const",
            "train.lr=0.05",
            f"run.speeds.sigma={sigma}",
            "run.speeds.hours=1.0",
            f"run.seed={seed}",
            "run.device=cpu",
            "run.clients_at_once=10",
            f"measure.every={max(AT_ONCE // uploads, 1)}",
            "measure.during=initial",
        ]
    )
    lasts = hours_of(config.run.speeds, seed, 1, range(CLIENTS))
    clock = Clock(hours, frozenset(sorted(range(CLIENTS), key=lasts.__getitem__)[-CLIENTS // 5 :]))
    with suppress(Stopped):
        run(config, listener=clock, stop=clock.stop)
    return clock


def smoothed(course: Sequence[tuple[float, float]], at: float) -> float:
    """The mean of the last three measurements up to an hour, because single ones are noisy."""
    before = [accuracy for hour, accuracy in course if hour <= at]
    return fmean(before[-3:]) if before else float("nan")


def reached(course: Sequence[tuple[float, float]], target: float) -> float | None:
    """The first hour at which the smoothed accuracy reaches a value."""
    return next((hour for hour, _ in course if smoothed(course, hour) >= target), None)


def cell(rule: str, sigma: float, clocks: Sequence[Clock]) -> dict[str, Any]:
    """The record of a setting: what is kept of its runs of all seeds."""
    return {
        "rule": rule,
        "sigma": sigma,
        "uploads": [len(clock.heard) for clock in clocks],
        "uploads_of_slow": [sum(k in clock.slow for k in clock.heard) for clock in clocks],
        "staleness": [round(fmean(clock.ages), 3) if clock.ages else 0.0 for clock in clocks],
        "courses": [[(round(hour, 3), round(found, 2)) for hour, found in clock.course] for clock in clocks],
        "courses_of_slow": [[(round(hour, 3), round(found, 2)) for hour, found in clock.of_slow] for clock in clocks],
    }


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(method: str, cells: Sequence[dict[str, Any]], hours: float, target: float) -> str:
    lines = [
        f"| {method} | σ | uploads | from the slowest fifth | mean staleness | hours to {target:g} % | "
        f"% after {hours:g} h | slowest fifth | % after as many uploads as synchronous |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in cells:
        there = [reached(course, target) for course in each["courses"]]
        known = [hour for hour in there if hour is not None]
        said = f"{fmean(known):.1f}" if len(known) == len(there) else f"{len(known)} of {len(there)} seeds"
        late = [smoothed(course, hours) for course in each["courses"]]
        plain = next((cell for cell in cells if (cell["rule"], cell["sigma"]) == (PLAIN, each["sigma"])), each)
        equal = [  # uploads come evenly, or nearly so
            smoothed(course, hours * fewer / max(own, 1))
            for course, fewer, own in zip(each["courses"], plain["uploads"], each["uploads"], strict=True)
        ]
        slow = [smoothed(course, hours) for course in each["courses_of_slow"]]
        share = sum(each["uploads_of_slow"]) / max(sum(each["uploads"]), 1)
        lines.append(
            f"| {each['rule']} | {each['sigma']:g} | {fmean(each['uploads']):.0f} | {100 * share:.0f} % | "
            f"{fmean(each['staleness']):.1f} | {said} | {spread(late)} | {spread(slow)} | {spread(equal)} |"
        )
    return "\n".join(lines)


def picture(cells: Sequence[dict[str, Any]], sigma: float, hours: float, about: str) -> str:
    """Smoothed accuracy, mean over seeds, on an even grid of hours."""
    grid = [hours * step / 40 for step in range(1, 41)]
    series = []
    for place, each in enumerate(cell for cell in cells if cell["sigma"] == sigma):
        known = [hour for hour in grid if all(course and course[0][0] <= hour for course in each["courses"])]
        ys = tuple(fmean(smoothed(course, hour) for course in each["courses"]) for hour in known)
        series.append(Series(each["rule"], place, tuple(known), ys))
    plot = draw_lines(series, LineOptions("simulated hours", "accuracy, %", bands=False, from_zero=True))
    return standing_alone(to_svg(plot.drawing(), about), WIDTH, plot.height)


def measured(methods: Sequence[str], sigmas: Sequence[float], hours: float, seeds: int) -> dict[str, Any]:
    machine = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
    found: dict[str, list[dict[str, Any]]] = {}
    for method in methods:
        found[method] = []
        for sigma in sigmas:
            for rule in RULES:
                clocks = [play(method, rule, sigma, seed, hours) for seed in range(seeds)]
                found[method].append(cell(rule, sigma, clocks))
                print(table(method, found[method][-1:], hours, 50.0).splitlines()[-1], flush=True)
    return {"clients": CLIENTS, "at_once": AT_ONCE, "hours": hours, "seeds": seeds, **machine, "methods": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=80.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sigmas", default="0.5,1,1.5")
    parser.add_argument("--methods", default="fedavg:70,fedper:85", help="METHOD:TARGET, with the accuracy to reach")
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    targets = {name: float(target) for name, _, target in (each.partition(":") for each in options.methods.split(","))}
    if options.again:
        found = json.loads((options.docs / "faults" / "fedbuff.json").read_text(encoding="utf-8"))
    else:
        found = measured(
            list(targets), [float(text) for text in options.sigmas.split(",")], options.hours, options.seeds
        )
    tables = [table(name, found["methods"][name], found["hours"], target) for name, target in targets.items()]
    print("\n\n".join(tables))
    if options.docs:
        write(options.docs, tables, found)


def write(docs: Path, tables: Sequence[str], found: dict[str, Any]) -> None:
    folder = docs / "faults"
    folder.mkdir(exist_ok=True)
    text = re.sub(r"\[\s+([-\d.]+),\s+([-\d.]+)\s+\]", r"[\1, \2]", json.dumps(found, indent=1))
    (folder / "fedbuff.json").write_text(text + "\n", encoding="utf-8")
    (method, cells), *_ = found["methods"].items()
    sigmas = sorted({cell["sigma"] for cell in cells})
    middle = sigmas[len(sigmas) // 2]
    said = f"{method}: accuracy against simulated hours, log-normal client speeds with sigma = {middle:g}"
    (folder / "fedbuff.svg").write_text(picture(cells, middle, found["hours"], said), encoding="utf-8")
    page = docs / "faults.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    body = "\n\n".join([*tables, f"![{said}](faults/fedbuff.svg)"])
    page.write_text(f"{head}{MARKS[0]}\n\n{body}\n\n{MARKS[1]}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
