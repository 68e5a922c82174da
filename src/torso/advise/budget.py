"""The budget of a tournament: rounds of FedAvg, or minutes, which are converted to rounds by the pace so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from torso.runs.events import Stop

PLANNED_SHARE = 0.85  # share of the remaining time that is planned with, because the pace varies


class Until(Stop):
    """Asks runs to stop when the user does, or at the time `at` (seconds of the clock; None: no time limit)."""

    def __init__(self, user: Stop, clock: Callable[[], float]) -> None:
        super().__init__()
        self.user, self.clock = user, clock
        self.at: float | None = None

    @property
    def asked(self) -> bool:
        return self._asked or self.user.asked or (self.at is not None and self.clock() > self.at)


class Budget:
    """A total of rounds of FedAvg, or of minutes; one of the two is None."""

    def __init__(
        self, rounds: float | None, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rounds, self.minutes, self.clock = rounds, minutes, clock
        self.began = clock()
        self.spent = 0.0  # rounds of FedAvg
        self.pace: float | None = None  # seconds a round, as last measured

    @property
    def timed(self) -> bool:
        """Whether the budget is in minutes."""
        return self.rounds is None

    @property
    def seconds(self) -> float:
        """Seconds since the budget was made."""
        return self.clock() - self.began

    @property
    def ends(self) -> float | None:
        """The time of the clock at which the budget ends; None if it is in rounds."""
        return None if self.minutes is None else self.began + 60 * self.minutes

    def left(self) -> float:
        """The remaining budget in rounds of FedAvg."""
        if self.rounds is not None:
            return self.rounds - self.spent
        assert self.minutes is not None
        assert self.pace is not None
        return max(PLANNED_SHARE * (60 * self.minutes - self.seconds) / self.pace, 0.0)

    def pay(self, rounds: float, seconds: float) -> None:
        """Count the cost of runs, in rounds of FedAvg, and the pace at which they ran."""
        self.spent += rounds
        if rounds > 0:
            self.pace = max(seconds / rounds, 1e-9)
