"""Run all that is not known yet until time is up; a second call goes on where the first ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from torso.papers.experiments.deadline import Deadline
from torso.papers.experiments.provenance import note_machine
from torso.papers.experiments.result_files import Record
from torso.papers.robust import records
from torso.papers.robust.cells import Plan, Trial
from torso.papers.robust.lengths import with_lengths
from torso.papers.tables.answers import is_divergence
from torso.parallel.hire import crew
from torso.parallel.together import run_together
from torso.results.result import Result
from torso.runs.run import Stopped


@dataclass
class Runs:
    """The runs of a plan and their files (`folder`)."""

    plan: Plan
    folder: Path
    stop: Deadline
    say: Callable[[str], None] = print
    known: dict[str, Record] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # name of a run → what went wrong

    def __post_init__(self) -> None:
        self.known = records.read(self.folder)

    def missing(self) -> list[Trial]:
        return [trial for trial in self.plan.trials() if not records.knows(self.known, trial)]

    def go(self, processes: int = 1) -> bool:
        """Run what is not known yet; returns whether all is done."""
        self.plan = with_lengths(self.plan, self.folder, self.say)
        trials = self.missing()
        if not trials:
            return True
        configs, places = [trial.config for trial in trials], [self.plan.work / trial.name for trial in trials]
        self.say(f"{self.stop.passed:5.0f} s: {len(trials)} runs, the first is {trials[0].name}")
        with crew(configs[0].run, processes) as workers:
            ends = run_together(
                configs,
                places,
                stop=self.stop,
                clients=self.plan.evidence.stack,
                after=note_machine,
                crew=workers,
            )
            try:
                with closing(ends):
                    for number, result in ends:
                        self._note(trials[number], result)
            except Stopped:
                self.say(f"{self.stop.passed:5.0f} s: time is up; the same command goes on")
                return False
        return not self.broken

    def _note(self, trial: Trial, result: Result | Exception) -> None:
        if isinstance(result, Exception) or not (result.ok or is_divergence(result.status)):
            self.broken[trial.name] = str(result if isinstance(result, Exception) else result.status)
            self.say(f"{self.stop.passed:5.0f} s: {trial.name}: {self.broken[trial.name]}")
            return
        found = ", ".join(f"{name} {accuracy.mean:.1f}" for name, accuracy in result.accuracy.items())
        self.say(f"{self.stop.passed:5.0f} s: {trial.name}: {found or result.status}")
        record = self.known.setdefault(trial.cell.file, records.empty(trial.cell))
        records.note(record, trial, result, self.plan.work / trial.name)
        records.write(self.folder, record)
