"""The runs of the leaderboard: make them, read those that are finished, and choose rates by their results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torso.errors import RunFailed
from torso.papers.board.contestants import Contestant
from torso.papers.board.definition import CHOOSES, NAME, Point
from torso.papers.board.trials import Trial, best_of, score
from torso.papers.experiments.outcome import is_final
from torso.papers.experiments.provenance import changed_as_json
from torso.papers.experiments.reuse import delete_large_checkpoints, finished_runs, training_key
from torso.papers.experiments.runner import announce, finished, run_all
from torso.parallel.pool import ProcessPool
from torso.results.files import write_text
from torso.results.folder import make_folder
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped

Validation = dict[str, float] | None  # accuracies on validation data; None: the run diverged


@dataclass
class BoardRuns:
    """The runs below OUT/leaderboard and their results so far."""

    out: Path
    listener: Listener | None = None
    stop: Stop | None = None
    hire: Callable[[], ProcessPool | None] = lambda: (
        None
    )  # starts the processes that share the runs, once there are runs
    at_once: int = 1  # how many families of methods are run together
    results: dict[str, Result | Exception] = field(default_factory=dict)  # by the name of the trial
    before: dict[str, Validation] = field(default_factory=dict)  # of tuning runs in published rows, by their names
    known: dict[str, Path] | None = None  # training key → a finished run to begin at; None: not looked for yet

    @property
    def folder(self) -> Path:
        return self.out / NAME

    @property
    def broken(self) -> dict[str, Exception]:
        """Runs that say nothing about their method, with what happened."""
        lost = {name: found for name, found in self.results.items() if not is_final(found)}
        return {name: RunFailed(end.status) if isinstance(end, Result) else end for name, end in lost.items()}

    def recall(self, trials: Iterable[Trial]) -> None:
        """Read the results of trials that are finished."""
        for trial in trials:
            if trial.name not in self.results:
                found = finished(trial.config, self.folder / trial.name)
                if found is not None:
                    self.results[trial.name] = found

    def run(self, trials: Sequence[Trial], note: Callable[[], None]) -> None:
        """Run the trials that have no result, and call `note` after each.

        Trials with the same training key share their training: the first one (the leader) runs before the others. If
        it fails, the others take its result."""
        leaders: dict[str, Trial] = {}
        waiting = [trial for trial in trials if trial.name not in self.before]
        with_leader = [(trial, leaders.setdefault(training_key(trial.config), trial)) for trial in waiting]
        self._run([trial for trial, leader in with_leader if trial is leader], note)
        for trial, leader in with_leader:
            first = self.results[leader.name]
            if not (isinstance(first, Result) and first.ok):
                self.results.setdefault(trial.name, first)
        self._run([trial for trial, _ in with_leader], note)

    def take(self, one: Contestant, row: Mapping[str, Any]) -> None:
        """Count the tuning runs and final runs of a published row as run, if the row has the same config."""
        config = one.plan.final(one.setting, one.entry, row["chosen"] or {}, 0).config
        if row["status"] == "ok" and changed_as_json(config) == row["config"]:
            one.published = row
            self._count(one, row["tried"])

    def take_tuned(self, one: Contestant, row: Mapping[str, Any]) -> None:
        """Count published tuning runs as run, if they have the same config."""
        if one.tuned_with == row["tuned_with"]:
            self._count(one, row["tried"])

    def _count(self, one: Contestant, points: Sequence[Mapping[str, Any]]) -> None:
        for tried in points:
            point = {key: value for key, value in tried.items() if key != "validation"}
            (trial,) = one.plan.tuning(one.setting, one.entry, [point])
            self.before[trial.name] = tried["validation"]

    def recall_tuning(self, one: Contestant) -> None:
        """Read the tuning runs that are finished, and those of the neighbours that follow from their results."""
        self.recall(one.tuning)
        while not self.missing(one) and (more := one.widen(self._best(one))):
            self.recall(more)

    def tune(self, contestants: Sequence[Contestant], note: Callable[[], None]) -> None:
        """Make the tuning runs, until the best point of every contestant has no untried neighbour."""
        while any(not self._done(trial) for one in contestants for trial in one.tuning):
            self.run([trial for one in contestants for trial in one.tuning], note)
            for one in contestants:
                self.recall_tuning(one)
        # no other run reuses these checkpoints, and there are about a thousand of them
        delete_large_checkpoints([self.folder / trial.name for one in contestants for trial in one.tuning], above=0)
        self.known = {key: at for key, at in (self.known or {}).items() if (at / "checkpoints").is_dir()}

    def _run(self, trials: Sequence[Trial], note: Callable[[], None]) -> None:
        waiting = [trial for trial in trials if trial.name not in self.results]
        if waiting and self.known is None:
            self.known = finished_runs(self.out)
        known = {} if self.known is None else self.known
        pool = self.hire() if waiting else None
        with closing(run_all(waiting, self.folder, known, self.listener, self.stop, pool)) as ends:
            for trial, result in ends:
                self.results[trial.name] = result
                note()

    def validation(self, trial: Trial) -> Validation:
        """The accuracies of a tuning run on validation data; None if it diverged."""
        if trial.name in self.before:
            return self.before[trial.name]
        found = self.results[trial.name]
        if not (isinstance(found, Result) and found.ok):
            return None
        means = {name: round(found.accuracy[name].mean, 4) for name in CHOOSES}
        return means if all(map(math.isfinite, means.values())) else None

    def tried(self, contestant: Contestant) -> list[dict[str, Any]]:
        """The points that were tried, each with its accuracies on validation data."""
        return [
            {**trial.point, "validation": self.validation(trial)}
            for trial in contestant.tuning
            if self._is_known(trial)
        ]

    def missing(self, contestant: Contestant) -> list[Trial]:
        """The tuning runs without a result: not run yet, or broken by something other than training."""
        return [trial for trial in contestant.tuning if not self._is_known(trial)]

    def _is_known(self, trial: Trial) -> bool:
        return trial.name in self.before or is_final(self.results.get(trial.name))

    def _done(self, trial: Trial) -> bool:
        return trial.name in self.results or trial.name in self.before

    def chosen(self, contestant: Contestant) -> Point | None:
        """The point with the largest sum on validation data; None if it is not known yet, or if all runs diverged."""
        if self.missing(contestant):
            return None
        reached = best_of(self.tried(contestant))["validation"]
        return self._best(contestant) if score(reached) > 0 else None

    def _best(self, contestant: Contestant) -> Point:
        best = best_of(self.tried(contestant))
        return {key: best[key] for key in contestant.tuning[0].point}

    def announce(self, title: str, left: int, rounds: int) -> None:
        announce(self.listener, title, left, rounds, len(self.results))

    def stopped(self) -> Stopped:
        done = sum(isinstance(found, Result) for found in self.results.values())
        return Stopped(f"stopped with {done} runs finished in {self.folder}. The same command continues with the rest.")

    def write(self, name: str, data: Any) -> None:
        make_folder(self.folder)
        write_text(self.folder / name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
