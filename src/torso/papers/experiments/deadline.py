"""Runs in a given time: when it is over they stop, each with a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from torso.papers.experiments.provenance import note_machine
from torso.papers.experiments.runner import NamedConfig
from torso.parallel.pool import ProcessPool
from torso.parallel.together import run_together
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped

T = TypeVar("T", bound=NamedConfig)


class Deadline(Stop):
    """A stop that asks runs to end, each with a checkpoint, once `seconds` have passed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.began = time.monotonic()
        self.seconds = seconds

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    @property
    def asked(self) -> bool:
        return self._asked or self.passed > self.seconds


def run_in_time(
    trials: Sequence[T],
    work: Path,
    stop: Deadline,
    note: Callable[[T, Result | Exception], None],
    say: Callable[[str], None],
    *,
    pool: ProcessPool | None,
    listener: Listener | None = None,
    clients: int | None = None,
) -> bool:
    """Run the trials, each in a folder below `work`, and call `note` as each ends. Returns False if time was up.
    `clients`: as in `run_together`."""
    configs, places = [trial.config for trial in trials], [work / trial.name for trial in trials]
    say(f"{stop.passed:5.0f} s: {len(trials)} runs, the first is {trials[0].name}")
    ends = run_together(configs, places, listener=listener, stop=stop, clients=clients, after=note_machine, pool=pool)
    try:
        with closing(ends):
            for number, result in ends:
                note(trials[number], result)
    except Stopped:
        say(f"{stop.passed:5.0f} s: time is up; the same command continues")
        return False
    return True
