"""A time after which runs end, each with a checkpoint."""

from __future__ import annotations

import time

from torso.runs.events import Stop


class Deadline(Stop):
    """Asks runs to end, each with a checkpoint, once so many seconds have passed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.began, self.seconds = time.monotonic(), seconds

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    @property
    def asked(self) -> bool:
        return self._asked or self.passed > self.seconds
