"""What a tournament may cost: rounds of FedAvg, or minutes, which are turned into rounds by the pace so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from torso.runs.events import Stop

SURE = 0.85  # of the time that is left is planned with: paces vary


class Until(Stop):
    """Asks runs to end when the user does, or at a time. `at`: seconds of the clock; None: whenever they are done."""

    def __init__(self, user: Stop, clock: Callable[[], float]) -> None:
        super().__init__()
        self.user, self.clock = user, clock
        self.at: float | None = None

    @property
    def asked(self) -> bool:
        return self._asked or self.user.asked or (self.at is not None and self.clock() > self.at)


class Budget:
    """So many rounds in all, or so many minutes."""

    def __init__(
        self, rounds: float | None, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rounds, self.minutes, self.clock = rounds, minutes, clock
        self.began = clock()
        self.spent = 0.0  # rounds of FedAvg
        self.pace: float | None = None  # seconds of a round, as last seen

    @property
    def timed(self) -> bool:
        return self.rounds is None

    @property
    def seconds(self) -> float:
        """That have passed."""
        return self.clock() - self.began

    @property
    def ends(self) -> float | None:
        """On the clock; None where time does not count."""
        return None if self.minutes is None else self.began + 60 * self.minutes

    def left(self) -> float:
        """Rounds of FedAvg that can still be paid for."""
        if self.rounds is not None:
            return self.rounds - self.spent
        assert self.minutes is not None
        assert self.pace is not None
        return max(SURE * (60 * self.minutes - self.seconds) / self.pace, 0.0)

    def pay(self, rounds: float, seconds: float) -> None:
        """So many rounds were played in so many seconds."""
        self.spent += rounds
        if rounds > 0:
            self.pace = max(seconds / rounds, 1e-9)
