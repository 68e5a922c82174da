"""Progress: a live display on a terminal, one plain line per round elsewhere."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from torso.measure import Accuracy
from torso.results.result import Result
from torso.runs.events import Begin, Listener, Through
from torso.runs.rounds import Round


def short(accuracy: Mapping[str, Accuracy]) -> str:
    return "  ".join(f"{name} {found.mean:.1f} ± {found.std:.1f}" for name, found in accuracy.items())


def means(accuracy: Mapping[str, Accuracy]) -> str:
    return "  ".join(f"{name} {found.mean:.1f}" for name, found in accuracy.items())


def who(round: Round) -> str:
    """How many have answered, and how many of those who were asked have not."""
    missing = f", {len(round.missing)} missing" if round.missing else ""
    return f"{len(round.participants)} clients{missing}"


def loss_of(loss: float, digits: int) -> str:
    """A diverging loss has no digits that mean anything."""
    return f"loss {loss:.{digits}f}" if loss < 1e6 else f"loss {loss:.1e}"


def spent(round: Round) -> list[str]:
    """ε so far, in a private run."""
    epsilon = round.privacy.get("epsilon")
    return [] if not round.privacy else ["no bound on ε" if epsilon is None else f"ε {epsilon:.3g}"]


def megabytes(round: Round) -> str:
    """What has travelled so far, both ways."""
    hours = f"  {round.cost.hours:.1f} h" if round.cost.hours else ""
    return f"{(round.cost.bytes_up + round.cost.bytes_down) / 1e6:.1f} MB{hours}"


class PlainLines(Listener):
    """Lines of progress, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.label = ""
        self.rounds = self.done = 0
        self.began = 0.0
        self.last: Mapping[str, Accuracy] = {}

    def begin(self, begin: Begin) -> None:
        self.label = f"{begin.method} seed {begin.seed}"
        self.rounds, self.done, self.began, self.last = begin.rounds, begin.done, time.perf_counter(), {}
        where = f", folder {begin.folder}" if begin.folder else ""
        self._say(f"{self.label}: {begin.rounds} rounds, {begin.clients} clients{where}")
        if begin.note:
            self._say(f"{self.label}: {begin.note}")

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.last = accuracy or self.last
        here = round.round - self.done
        left = (time.perf_counter() - self.began) / here * (self.rounds - round.round)
        parts = [
            f"{self.label}: round {round.round}/{self.rounds}",
            who(round),
            loss_of(round.loss, 4),
            f"{seconds:.2f} s",
            megabytes(round),
            *spent(round),
            f"{left:.0f} s left",
        ]
        self._say("  ".join([*parts, *([short(self.last)] if self.last else [])]))

    def note(self, text: str) -> None:
        self._say(f"{self.label}: {text}" if self.label else text)

    def beside(self) -> Listener:
        return copy.copy(self)

    def end(self, result: Result) -> None:
        self._say("  ".join(filter(None, (f"{self.label}: {result.status}", short(result.accuracy)))))

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


class LiveBars(Listener):
    """One bar per run: round, participants, loss, last measured accuracies, time left."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=18),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[news]}"),
            console=console,
        )
        self.task = TaskID(0)
        self.last = ""
        self.waiting: list[TaskID] = []  # shown until the first run begins; one list for all displays beside this one

    def __enter__(self) -> LiveBars:
        self.progress.start()
        self.waiting.append(self.progress.add_task("reading data", total=None, news=""))
        return self

    def __exit__(self, *exc: object) -> None:
        self._wait_no_more()
        self.progress.stop()

    def _wait_no_more(self) -> None:
        while self.waiting:
            self.progress.remove_task(self.waiting.pop())

    def begin(self, begin: Begin) -> None:
        self.last = ""
        self._wait_no_more()
        self.task = self.progress.add_task(
            f"{begin.method} seed {begin.seed}", total=begin.rounds, completed=begin.done, news=escape(begin.note)
        )

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.last = means(accuracy) or self.last
        news = f"{who(round)}  {loss_of(round.loss, 3)}  {'  '.join([megabytes(round), *spent(round)])}  {self.last}"
        self.progress.update(self.task, completed=round.round, news=news)

    def note(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def beside(self) -> Listener:
        return copy.copy(self)  # a bar of its own in the same display

    def measuring(self, clients: int) -> None:
        self.progress.update(self.task, news=f"measuring {clients} clients")

    def end(self, result: Result) -> None:
        news = means(result.accuracy) if result.ok else f"[red]{escape(result.status)}"
        self.progress.update(self.task, news=news)


class Both(Through):
    """Tells two listeners."""

    def __init__(self, listener: Listener, other: Listener) -> None:
        super().__init__(listener)
        self.other = other

    def begin(self, begin: Begin) -> None:
        super().begin(begin)
        self.other.begin(begin)

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        super().round(round, seconds, accuracy)
        self.other.round(round, seconds, accuracy)

    def note(self, text: str) -> None:
        super().note(text)
        self.other.note(text)

    def measuring(self, clients: int) -> None:
        super().measuring(clients)
        self.other.measuring(clients)

    def end(self, result: Result) -> None:
        super().end(result)
        self.other.end(result)

    def beside(self) -> Listener:
        return Both(self.listener.beside(), self.other.beside())


def is_shown(progress: bool | None) -> bool:
    """Whether a run shows its progress by itself: where that is asked for, and in a notebook where nothing is said."""
    return Console(stderr=True).is_jupyter if progress is None else progress


@contextmanager
def followed(listener: Listener | None, progress: bool | None) -> Iterator[Listener]:
    """Whoever listens; where progress is shown, with bars in a notebook and on a terminal, or plain lines elsewhere."""
    console = Console(stderr=True)
    if not is_shown(progress):
        yield listener or Listener()
    elif console.is_jupyter or console.is_terminal:
        with LiveBars(console) as bars:
            yield bars if listener is None else Both(bars, listener)
    else:
        lines = PlainLines(console)
        yield lines if listener is None else Both(lines, listener)
