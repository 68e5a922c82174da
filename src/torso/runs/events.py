"""What a run tells those who watch it: progress bars, plain lines, loggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torso.measure import Accuracy
from torso.runs.result import Result
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

    def measuring(self, clients: int) -> None: ...

    def end(self, result: Result) -> None: ...


class Stop:
    """Set by whoever wants the run to end after the current round, with a checkpoint."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True
