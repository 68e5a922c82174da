"""Run a table: each run has its own folder, and table.json is written again after each run."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from torso.config import Config
from torso.papers.experiments.provenance import machine_of
from torso.papers.experiments.reuse import finished_runs
from torso.papers.experiments.runner import announce, finished, run_all
from torso.papers.tables.answers import Answer, RunAnswers, answers_of, failed, read
from torso.papers.tables.plan import TablePlan, TableRun
from torso.parallel.hire import pool
from torso.results.files import write_text
from torso.results.folder import make_folder
from torso.results.result import Result
from torso.results.same_run import fingerprint
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped


@dataclass
class TableResults:
    """The results of a table so far, and the errors of runs that broke."""

    plan: TablePlan
    out: Path
    whole: TablePlan | None = None  # the table without --only, for table.json
    found: list[dict[int, RunAnswers]] = field(default_factory=list)  # for each line: seed → answers of the run
    broken: dict[str, Exception] = field(default_factory=dict)  # name of a run → error
    done: set[str] = field(default_factory=set)  # names of runs

    def __post_init__(self) -> None:
        self.found = [{} for _ in self.plan.lines]

    @property
    def folder(self) -> Path:
        return self.out / self.plan.recipe.name.replace("/", "-")

    def place(self, run: TableRun) -> Path:
        """The folder of a run."""
        return self.folder / run.name

    @property
    def answers(self) -> list[Answer]:
        return answers_of(self.plan, self.found)

    def note(self, run: TableRun, result: Result | Exception) -> None:
        """Add the result of a run."""
        if isinstance(result, Exception):
            self.broken[run.name] = result
            found = failed(result, run.config)
        else:
            found = read(result, run.config, run.answers, machine_of(self.place(run)))
        self.done.add(run.name)
        for line in run.answers:
            self.found[line][found.seed] = found

    def write(self) -> None:
        """Write table.json."""
        make_folder(self.folder)
        answers = answers_of(self.whole or self.plan, self.found)
        write_text(self.folder / "table.json", json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def reproduce(
    plan: TablePlan,
    out: Path,
    *,
    whole: TablePlan | None = None,
    listener: Listener | None = None,
    stop: Stop | None = None,
    processes: int = 1,
) -> TableResults:
    """Run what is not finished. A run that breaks does not end the others. After a stop the same command continues.

    `whole`: the plan of the whole table; with it table.json also has the results of earlier commands. `processes`: how
    many processes share the runs. One process leaves an accelerator idle between rounds."""
    table = TableResults(plan, out, whole)
    _recall(table)
    waiting = []
    for run in plan.runs:
        before = finished(run.config, table.place(run))
        if before is None:
            waiting.append(run)
        else:
            table.note(run, before)
    table.write()
    if not waiting:
        return table
    rounds = sum(int(r.config.train.rounds) for r in waiting)
    announce(listener, plan.recipe.name, len(waiting), rounds, len(table.done))
    try:
        with (
            pool(waiting[0].config.run, processes) as workers,
            closing(run_all(waiting, table.folder, finished_runs(out), listener, stop, workers)) as ends,
        ):
            for run, result in ends:
                table.note(run, result)
                table.write()
    except Stopped:
        left = len(plan.runs) - len(table.done)
        raise Stopped(
            f"stopped with {len(table.done)} of {len(plan.runs)} runs finished in {table.folder}. "
            f"The same command continues with the other {left}."
        ) from None
    return table


def _recall(table: TableResults) -> None:
    """Add the finished runs of the whole table that the plan does not select."""
    asked = {run.name for run in table.plan.runs}
    for run in table.whole.runs if table.whole else ():
        place = table.place(run)
        if run.name in asked or not (place / "result.json").exists():
            continue
        if fingerprint(Config.load(place / "config.toml")) == fingerprint(run.config):
            table.note(run, Result.read(place))
    table.done.clear()
