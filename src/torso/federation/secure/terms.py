"""The parameters of secret sharing in a secure sum: number of shares, threshold, and each client's neighbours."""

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
"""The smallest number of uploads in a sum. From a sum of two, each client could compute the other's upload."""


@dataclass(frozen=True)
class SharingParameters:
    """The parameters of secret sharing. A client computes them from the config, so it need not trust the server.

    If clients share secrets only with their neighbours on a ring, more than the neighbours on one side must be left.
    Otherwise clients that leave could cut the ring into two parts. The masks of each part would cancel by themselves,
    and the server would learn the sum of each part."""

    shares: int  # clients that hold a share of a client's secrets, itself included
    threshold: int  # shares that open a secret; more than half, so that no two groups can open different ones

    @classmethod
    def of(cls, options: SecureConfig, participants: int) -> SharingParameters:
        """The parameters for a number of participants."""
        if participants < LEAST:
            raise RequestError(
                f"{participants} clients are too few for a secure sum, which tells each of two the other's upload. "
                f"Expected: {LEAST} or more"
            )
        shares = min(options.shares or participants, participants)
        both_sides = shares // 2 + 2 if shares < participants else LEAST
        return cls(shares, max(math.floor(options.threshold * shares + 1e-9) + 1, both_sides, LEAST))

    def neighbours(self, clients: Collection[int]) -> dict[int, frozenset[int]]:
        """Client → its neighbours, which hold shares of its secrets: the nearest on a random ring, and itself."""
        ring = list(clients)
        secrets.SystemRandom().shuffle(ring)
        reach = range(-(self.shares // 2), self.shares // 2 + 1)
        return {
            client: frozenset(ring[(place + offset) % len(ring)] for offset in reach)
            for place, client in enumerate(ring)
        }
