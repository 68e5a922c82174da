"""A listener that says which runs trained."""

from __future__ import annotations

from collections.abc import Mapping

from torso.measure import Accuracy
from torso.runs.events import Begin, Listener, Stop
from torso.runs.rounds import Round


class Heard(Listener):
    """Which runs trained, and a stop after some rounds of all."""

    def __init__(self, rounds: int = 10**6) -> None:
        self.begun: list[tuple[str, int]] = []
        self.left, self.stop = rounds, Stop()

    def begin(self, begin: Begin) -> None:
        assert begin.folder is not None
        self.begun.append((begin.folder.name, begin.done))

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop.ask()
