"""The parts of request and reply headers that belong to a secure sum; bytes are encoded in base64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from torso.kinds import Count, CountOrZero

_SESSION = r"^[0-9a-f]{32}$"
ShortBytes = Annotated[bytes, Field(max_length=4096)]
Keys = tuple[ShortBytes, ShortBytes]
"""The two public keys of a client: for shared masks, and for the encryption of messages to it."""


class _Note(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class SumRequest(_Note):
    """The part of a request header that belongs to a secure sum.

    A comment begins with the kinds of request that use the field."""

    session: Annotated[str, Field(pattern=_SESSION)]  # all: id of one attempt at one sum
    participants: CountOrZero = 0  # keys: number of participants
    keys: Mapping[CountOrZero, Keys] = {}  # shares: public keys of the neighbours and of the client itself
    shares: Mapping[CountOrZero, ShortBytes] = {}  # told, sums: neighbour → its encrypted shares for this client
    scale: Count = 1  # told, sums: divisor of sample counts, so that no weight is above 1
    active: tuple[CountOrZero, ...] = ()  # unmask: neighbours whose vector is in the sum
    dead: tuple[CountOrZero, ...] = ()  # unmask: neighbours that shared secrets but sent no vector


class SumReply(_Note):
    """The part of a reply header that belongs to a secure sum."""

    keys: Keys | None = None
    shares: Mapping[CountOrZero, ShortBytes] = {}  # neighbour → shares encrypted for it; unmask: a share of its secret
