"""The display of many runs, also of runs in parallel: how many runs and rounds are done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn

from torso.measure import Accuracy
from torso.papers.experiments.runner import BatchListener
from torso.report.summary import counted
from torso.results.result import Result
from torso.runs.events import Begin, Listener
from torso.runs.progress import means, short
from torso.runs.rounds import Round


class _Count(BatchListener):
    """A listener that counts the runs: the common part of the bar and the lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.title = ""
        self.runs = self.ended = 0
        self.began = time.perf_counter()

    def expect(self, title: str, runs: int, rounds: int, done: int) -> None:
        self.title = title
        self.runs, self.ended = runs + done, done
        self.began = time.perf_counter()

    def end(self, result: Result) -> None:
        self.ended += 1

    def tally(self) -> str:
        """Runs done of all runs: `3/12`. If tuning needs more runs than expected: `13 (12 foreseen)`."""
        return f"{self.ended}/{self.runs}" if self.ended <= self.runs else f"{self.ended} ({self.runs} foreseen)"

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def beside(self) -> Listener:
        return _Beside(self)


class _Beside(Listener):
    """The listener of one run in another process. Rounds that it repeats because its process was lost do not count
    twice."""

    def __init__(self, table: _Count) -> None:
        self.shown = table
        self.name = ""
        self.done = 0

    def begin(self, begin: Begin) -> None:
        self.name = begin.folder.name if begin.folder else begin.method
        since_last_count = begin.done - self.done  # rounds; negative if some were lost
        self.shown.begin(replace(begin, done=since_last_count))
        self.done = begin.done

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.done += 1
        self.shown.round(round, seconds, accuracy)

    def note(self, text: str) -> None:
        self.shown.note(f"{self.name}: {text}" if self.name else text)

    def end(self, result: Result) -> None:
        self.shown.end(result)


class TableLines(_Count):
    """The display for logs and pipes: a line at the start, and a line for each finished run."""

    def expect(self, title: str, runs: int, rounds: int, done: int) -> None:
        super().expect(title, runs, rounds, done)
        finished = f", {done} finished before" if done else ""
        self.note(f"{title}: {counted(runs, 'run')}, {counted(rounds, 'round')}{finished}")

    def end(self, result: Result) -> None:
        super().end(result)
        name = result.folder.name if result.folder else result.method
        taken = time.perf_counter() - self.began
        self.note(f"{self.title}: {self.tally()}  {name}  {result.status}  {short(result.accuracy)}  {taken:.0f} s")


class TableBar(_Count):
    """The display for terminals: one bar with rounds done, runs done, the last result and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[runs]} runs"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[news]}"),
            console=console,
        )
        self.task = TaskID(0)
        self.rounds = self.seen = 0
        self.last = ""

    def __enter__(self) -> TableBar:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def expect(self, title: str, runs: int, rounds: int, done: int) -> None:
        super().expect(title, runs, rounds, done)
        self.rounds, self.seen = rounds, 0
        self.task = self.progress.add_task(title, total=max(rounds, 1), runs=self.tally(), news="")

    def begin(self, begin: Begin) -> None:
        self._advance(begin.done)

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self._advance(1)
        self.progress.update(self.task, news=f"{round.stage} round {round.round}  {self.last}")

    def end(self, result: Result) -> None:
        super().end(result)
        self.last = f"last: {escape(result.folder.name if result.folder else result.method)} {means(result.accuracy)}"
        self.progress.update(self.task, runs=self.tally(), news=self.last)

    def _advance(self, rounds: int) -> None:
        """Move the bar. After more rounds than expected it always has one round left, since a full bar would mean that
        all is done."""
        self.seen += rounds
        total = self.seen + 1 if self.seen > self.rounds else None  # None: unchanged
        self.progress.update(self.task, advance=rounds, total=total)
