"""Progress of many runs, also of runs side by side: how many runs and rounds are done."""

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
    """What the bar and the lines count."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.title, self.runs, self.ended, self.began = "", 0, 0, time.perf_counter()

    def expect(self, title: str, runs: int, rounds: int, done: int) -> None:
        self.title, self.runs, self.ended, self.began = title, runs + done, done, time.perf_counter()

    def end(self, result: Result) -> None:
        self.ended += 1

    def tally(self) -> str:
        """`3/12`: runs done of all runs. Tuning may need more runs than foreseen; then it says so."""
        return f"{self.ended}/{self.runs}" if self.ended <= self.runs else f"{self.ended} ({self.runs} foreseen)"

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def beside(self) -> Listener:
        return _Beside(self)


class _Beside(Listener):
    """A run in another process. Rounds that it repeats after its process was lost are not counted twice."""

    def __init__(self, table: _Count) -> None:
        self.shown, self.name, self.done = table, "", 0

    def begin(self, begin: Begin) -> None:
        self.name = begin.folder.name if begin.folder else begin.method
        self.shown.begin(
            replace(begin, done=begin.done - self.done)
        )  # rounds since the last count; negative where some were lost
        self.done = begin.done

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.done += 1
        self.shown.round(round, seconds, accuracy)

    def note(self, text: str) -> None:
        self.shown.note(f"{self.name}: {text}" if self.name else text)

    def end(self, result: Result) -> None:
        self.shown.end(result)


class TableLines(_Count):
    """For logs and pipes: a line at the start, and a line per finished run."""

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
    """For terminals: one bar with rounds done, runs done, the last result and the time left."""

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
        """Beyond the foreseen rounds the bar always has one round left: a full bar would mean that it is over."""
        self.seen += rounds
        total = self.seen + 1 if self.seen > self.rounds else None  # None: as it is
        self.progress.update(self.task, advance=rounds, total=total)
