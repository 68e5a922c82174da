"""What a run tells those who watch it: progress bars, plain lines, loggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torso.measure import Accuracy
from torso.results.result import Result
from torso.runs.rounds import Round


@dataclass(frozen=True)
class Begin:
    """`done` rounds of `rounds` come from a checkpoint."""

    method: str
    seed: int
    clients: int
    rounds: int
    done: int = 0
    folder: Path | None = None
    note: str = ""


class Listener:
    """Does nothing; override what you want to hear."""

    def begin(self, begin: Begin) -> None: ...

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None: ...

    def note(self, text: str) -> None:
        """Something that a person may want to know and that changes no result: a worker was replaced."""

    def measuring(self, clients: int) -> None: ...

    def end(self, result: Result) -> None: ...

    def beside(self) -> Listener:
        """Who hears of one of several runs that go on at the same time; in the same display, where there is one."""
        return self


class Through(Listener):
    """Passes everything on to another listener; the base of those that do something beside."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def begin(self, begin: Begin) -> None:
        self.listener.begin(begin)

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.listener.round(round, seconds, accuracy)

    def note(self, text: str) -> None:
        self.listener.note(text)

    def measuring(self, clients: int) -> None:
        self.listener.measuring(clients)

    def end(self, result: Result) -> None:
        self.listener.end(result)


class Stop:
    """Set by whoever wants the run to end after the current round, with a checkpoint.

    `when` says in words when a run that is asked now would end; the run itself keeps it right."""

    ROUND = "after this round (Ctrl-C again: at once, without a checkpoint)"
    MEASURE = "after this measure (Ctrl-C again: at once; there is a checkpoint of the last round)"

    def __init__(self) -> None:
        self._asked = False
        self.when = self.ROUND

    @property
    def asked(self) -> bool:
        return self._asked

    def ask(self) -> None:
        self._asked = True
