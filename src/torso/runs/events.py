"""Listeners, which follow a run (progress bars, plain lines, loggers), and `Stop`, which asks a run to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torso.measure import Accuracy
from torso.results.result import Result
from torso.runs.rounds import Round


@dataclass(frozen=True)
class Begin:
    """What a listener is told when a run begins."""

    method: str
    seed: int
    clients: int
    rounds: int
    done: int = 0  # rounds that come from a checkpoint
    folder: Path | None = None
    note: str = ""  # where a resumed run continues


class Listener:
    """Follows a run. This base class does nothing: derive from it and override the hooks that you need.

    A run calls `begin` once, `round` after every round, `measuring` before the last measurement, and `end` once. It
    waits for each call; an error in one ends the run.

        class Losses(torso.Listener):
            def round(self, round, seconds, accuracy):
                print(round.round, round.loss, f"{seconds:.1f} s", {n: a.mean for n, a in accuracy.items()})

        torso.run(config, listener=Losses())
    """

    def begin(self, begin: Begin) -> None:
        """The request is checked, and the first round comes next."""

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        """A round has ended: `round.round` is its number, `round.loss` the mean training loss, `round.participants` the
        clients that took part. `accuracy` has what was measured after it (`measure.every`); it is empty in most
        rounds."""

    def note(self, text: str) -> None:
        """Something that the user may want to know and that changes no result, for example that a worker was
        replaced."""

    def measuring(self, clients: int) -> None:
        """Training is over, and the given number of clients is measured next."""

    def end(self, result: Result) -> None:
        """The run has ended. `result.status` says whether it succeeded."""

    def beside(self) -> Listener:
        """A listener for one of several runs that take place at the same time. It shares this one's display, if any."""
        return self


class ForwardingListener(Listener):
    """A listener that passes everything on to another one. Derive from it to do something in addition."""

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
    """A switch that asks a run to end after the current round, with a checkpoint.

    `when`: a text that says when a run that is asked now would end. The run keeps it up to date."""

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
