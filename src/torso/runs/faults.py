"""Simulated faults of clients: which participants of a round fail, and how, drawn from (seed, round, client, attempt).

| fault   | is sent the model | trains | uploads | why its upload does not count              |
|---------|-------------------|--------|---------|--------------------------------------------|
| drop    | no                | no     | no      | the client is not available                |
| crash   | yes               | yes    | no      | the client fails before it uploads         |
| late    | yes               | yes    | yes     | the upload comes after the deadline        |
| corrupt | yes               | yes    | yes     | the upload is damaged, and is not used     |

A faulty client keeps the state that it had before the round. A real federation does the same: there a client takes over
its new state only when the server says that the upload counts. So a client's control variate or FedDyn memory never
changes without the server's mean of them. What a faulty client would compute has no effect, and is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import FaultsConfig

FAULTS = ("drop", "crash", "late", "corrupt")
NOT_FINITE, WRONG_FORM, WRONG_NUMBERS, UNREADABLE = "not finite", "wrong form", "wrong numbers", "unreadable"
REFUSED = (NOT_FINITE, WRONG_FORM, WRONG_NUMBERS, UNREADABLE)
"""The reasons for which an upload that has arrived is not used (uploads.py)."""
TRAINED = frozenset({"crash", "late", "corrupt", *REFUSED})  # the client has trained all the same
UPLOADED = frozenset({"late", "corrupt", *REFUSED})  # the client has sent an upload all the same

Faults = Mapping[int, str]
"""Client -> its fault in a round. Clients without a fault are left out."""


def faults_of(config: FaultsConfig, seed: int, round: int, attempt: int, clients: Sequence[int]) -> dict[int, str]:
    """The faults of a round, in the order of the clients. `attempt`: how often the round was played before."""
    chances = [(name, getattr(config, name)) for name in FAULTS if getattr(config, name)]
    found: dict[int, str] = {}
    if not chances:
        return found
    for client in clients:
        drawn = numpy_generator(seed, "faults", round, client, attempt).random()
        for name, chance in chances:
            if drawn < chance:
                found[client] = name
                break
            drawn -= chance
    return found
