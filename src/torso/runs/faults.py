"""Clients that fail in a simulation: who is not heard in a round, and why, drawn from (seed, round, client, attempt).

| fault   | is sent the model | trains | uploads | why the server does without it             |
|---------|-------------------|--------|---------|--------------------------------------------|
| drop    | no                | no     | no      | it is not there                            |
| crash   | yes               | yes    | no      | it breaks down before it uploads           |
| late    | yes               | yes    | yes     | the upload comes after the deadline        |
| corrupt | yes               | yes    | yes     | the upload is damaged, and is not taken in |

A client that was not heard holds what it held before the round, as on a real federation, where a client takes its own
part over only when the server says that the answer counts. So a control variate or FedDyn's memory of a client never
moves without the server's mean of them, and what a faulty client would compute has no effect: it is not computed.
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
"""What is wrong with an upload that came and is not used (uploads.py)."""
TRAINED = frozenset({"crash", "late", "corrupt", *REFUSED})
UPLOADED = frozenset({"late", "corrupt", *REFUSED})

Faults = Mapping[int, str]
"""What goes wrong with a client in a round; those who are not in it are heard."""


def faults_of(config: FaultsConfig, seed: int, round: int, attempt: int, clients: Sequence[int]) -> dict[int, str]:
    """What goes wrong with whom, in the clients' order. `attempt`: how often the round was played before."""
    bounds = [(name, getattr(config, name)) for name in FAULTS if getattr(config, name)]
    found = {}
    for client in clients if bounds else ():
        drawn = numpy_generator(seed, "faults", round, client, attempt).random()
        for name, chance in bounds:
            if drawn < chance:
                found[client] = name
                break
            drawn -= chance
    return found
