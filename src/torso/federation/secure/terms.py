"""What a secure sum promises: how many clients hold shares of a secret, and how many of them can open it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import SecureConfig

LEAST = 3
"""No sum of fewer uploads is opened: of two, each of the two clients knows the other's."""


@dataclass(frozen=True)
class Terms:
    """The same on both sides: a client works them out from the config, and need not believe the server.

    Where not everybody holds shares of everybody, more than one side of a client's neighbours has to be left. Otherwise
    clients that leave could cut the ring in two parts whose masks cancel each by itself, and the server would have a
    sum of each."""

    shares: int  # clients that hold a share of a client's secrets, itself included
    threshold: int  # shares that open a secret; more than half, so that no two groups can open different ones

    @classmethod
    def of(cls, options: SecureConfig, participants: int) -> Terms:
        if participants < LEAST:
            raise RequestError(
                f"{participants} clients are too few for a secure sum, which tells each of two the other's upload. "
                f"Expected: {LEAST} or more"
            )
        shares = min(options.shares or participants, participants)
        whole = shares // 2 + 2 if shares < participants else LEAST
        return cls(shares, max(math.floor(options.threshold * shares + 1e-9) + 1, whole, LEAST))

    def neighbours(self, clients: Collection[int]) -> dict[int, frozenset[int]]:
        """Who holds shares of whom: a ring in random order, each with the nearest on both sides and itself."""
        ring = list(clients)
        secrets.SystemRandom().shuffle(ring)
        reach = range(-(self.shares // 2), self.shares // 2 + 1)
        return {
            client: frozenset(ring[(place + offset) % len(ring)] for offset in reach)
            for place, client in enumerate(ring)
        }
