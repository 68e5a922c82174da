"""Run what is missing until time is up. A second call continues where the first stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torso.papers.experiments.deadline import Deadline, run_in_time
from torso.papers.experiments.outcome import is_final
from torso.papers.experiments.result_files import Record
from torso.papers.robust import records
from torso.papers.robust.cells import Plan, Trial
from torso.papers.robust.lengths import with_lengths
from torso.parallel.hire import pool
from torso.results.result import Result


@dataclass
class Runs:
    """The runs of a plan, and the json files of their results."""

    plan: Plan
    folder: Path  # of the json files
    stop: Deadline
    say: Callable[[str], None] = print
    known: dict[str, Record] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # name of a run → what went wrong

    def __post_init__(self) -> None:
        self.known = records.read(self.folder)

    def missing(self) -> list[Trial]:
        return [trial for trial in self.plan.trials() if not records.knows(self.known, trial)]

    def go(self, processes: int = 1) -> bool:
        """Run what is missing, and return whether all is done."""
        self.plan = with_lengths(self.plan, self.folder, self.say)
        trials = self.missing()
        if not trials:
            return True
        with pool(trials[0].config.run, processes) as workers:
            done = run_in_time(
                trials,
                self.plan.work,
                self.stop,
                self._note,
                self.say,
                pool=workers,
                clients=self.plan.evidence.stack,
            )
        return done and not self.broken

    def _note(self, trial: Trial, result: Result | Exception) -> None:
        if isinstance(result, Exception) or not is_final(result):
            self.broken[trial.name] = str(result if isinstance(result, Exception) else result.status)
            self.say(f"{self.stop.passed:5.0f} s: {trial.name}: {self.broken[trial.name]}")
            return
        found = ", ".join(f"{name} {accuracy.mean:.1f}" for name, accuracy in result.accuracy.items())
        self.say(f"{self.stop.passed:5.0f} s: {trial.name}: {found or result.status}")
        record = self.known.setdefault(trial.cell.file, records.empty(trial.cell))
        records.note(record, trial, result, self.plan.work / trial.name)
        records.write(self.folder, record)
