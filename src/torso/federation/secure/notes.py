"""What letters and replies say in a secure sum, as they stand in the header; bytes are written in base64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from torso.kinds import Count, CountOrZero

_SESSION = r"^[0-9a-f]{32}$"
Some = Annotated[bytes, Field(max_length=4096)]
Keys = tuple[Some, Some]
"""The public keys of a client: for masks, and to be written to."""


class _Note(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class Sealing(_Note):
    """The part of a letter that says which sum it is about, and what the stage needs."""

    session: Annotated[str, Field(pattern=_SESSION)]  # one attempt at one sum
    participants: CountOrZero = 0  # keys: how many there are
    keys: Mapping[CountOrZero, Keys] = {}  # shares: of the neighbours, itself among them
    shares: Mapping[CountOrZero, Some] = {}  # told, sums: by neighbour, what it has written to this client
    scale: Count = 1  # told, sums: what samples are divided by, so that no weight is above 1
    active: tuple[CountOrZero, ...] = ()  # unmask: neighbours whose vector is in the sum
    dead: tuple[CountOrZero, ...] = ()  # unmask: those that have shared secrets, and sent no vector


class Sealed(_Note):
    """The part of a reply that belongs to a secure sum."""

    keys: Keys | None = None
    shares: Mapping[CountOrZero, Some] = {}  # by neighbour: encrypted for it, or (unmask) a share of one of its secrets
