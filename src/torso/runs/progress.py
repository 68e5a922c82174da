"""Listeners that show progress: live bars on a terminal or in a notebook, one plain line per round elsewhere."""

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

from torso.data.input_base import plural
from torso.measure import Accuracy
from torso.results.result import Result
from torso.runs.events import Begin, ForwardingListener, Listener
from torso.runs.rounds import Round


def short(accuracy: Mapping[str, Accuracy]) -> str:
    """Each measure with its mean and standard deviation over clients; one model alone has no deviation."""
    return "  ".join(
        f"{name} {found.mean:.1f} ± {found.std:.1f}" if found.n > 1 else f"{name} {found.mean:.1f}"
        for name, found in accuracy.items()
    )


def means(accuracy: Mapping[str, Accuracy]) -> str:
    """Each measure with its mean over clients."""
    return "  ".join(f"{name} {found.mean:.1f}" for name, found in accuracy.items())


def who(round: Round) -> str:
    """How many participants have answered, and how many have not."""
    missing = f", {len(round.missing)} missing" if round.missing else ""
    return f"{plural(len(round.participants), 'client')}{missing}"


def loss_of(loss: float, digits: int) -> str:
    """The loss as text. A diverging loss is shown with few digits, since the others mean nothing."""
    return f"loss {loss:.{digits}f}" if loss < 1e6 else f"loss {loss:.1e}"


def spent(round: Round) -> list[str]:
    """The ε that is spent so far, as a list of one text. Empty if the run is not private."""
    if not round.privacy:
        return []
    epsilon = round.privacy.get("epsilon")
    return ["no bound on ε" if epsilon is None else f"ε {epsilon:.3g}"]


def megabytes(round: Round) -> str:
    """The megabytes sent so far in both directions, and the simulated hours if time is simulated."""
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
        self.rounds = begin.rounds
        self.done = begin.done
        self.began = time.perf_counter()
        self.last = {}
        where = f", folder {begin.folder}" if begin.folder else ""
        self._say(f"{self.label}: {plural(begin.rounds, 'round')}, {plural(begin.clients, 'client')}{where}")
        if begin.note:
            self._say(f"{self.label}: {begin.note}")

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.last = accuracy or self.last
        played = round.round - self.done
        left = (time.perf_counter() - self.began) / played * (self.rounds - round.round)
        parts = [
            f"{self.label}: round {round.round}/{self.rounds}",
            who(round),
            loss_of(round.loss, 4),
            f"{seconds:.2f} s",
            megabytes(round),
            *spent(round),
            f"{left:.0f} s left",
        ]
        if self.last:
            parts.append(short(self.last))
        self._say("  ".join(parts))

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
        # bars shown until the first run begins; all listeners of the display (see `beside`) share this list
        self.waiting: list[TaskID] = []

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
        return copy.copy(self)  # `begin` gives it another bar in the same display

    def measuring(self, clients: int) -> None:
        self.progress.update(self.task, news=f"measuring {clients} clients")

    def end(self, result: Result) -> None:
        news = means(result.accuracy) if result.ok else f"[red]{escape(result.status)}"
        self.progress.update(self.task, news=news)


class TwoListeners(ForwardingListener):
    """A listener that passes everything on to two listeners."""

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
        return TwoListeners(self.listener.beside(), self.other.beside())


def is_shown(progress: bool | None) -> bool:
    """Whether a run shows its progress: as `progress` says; if it says nothing (None), only in a notebook."""
    return Console(stderr=True).is_jupyter if progress is None else progress


@contextmanager
def followed(listener: Listener | None, progress: bool | None) -> Iterator[Listener]:
    """The listener of a run: the given one and, if progress is shown, a display of bars or plain lines."""
    console = Console(stderr=True)
    if not is_shown(progress):
        yield listener or Listener()
    elif console.is_jupyter or console.is_terminal:
        with LiveBars(console) as bars:
            yield bars if listener is None else TwoListeners(bars, listener)
    else:
        lines = PlainLines(console)
        yield lines if listener is None else TwoListeners(lines, listener)
