"""`Section`, the base of all sections of a config, and the types of values that only configs use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torso.kinds import CountOrZero


def _split(value: Any) -> Any:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _split_numbers(value: Any) -> Any:
    if isinstance(value, int):
        return [value]
    pieces = _split(value)
    if not isinstance(pieces, list | tuple):
        return pieces
    return [int(piece) if isinstance(piece, str) and piece.isdecimal() else piece for piece in pieces]


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]  # a list of names, or names separated by commas
Counts = Annotated[tuple[CountOrZero, ...], BeforeValidator(_split_numbers)]  # a number, a list, or "1, 2"
Severities = Annotated[
    tuple[Annotated[int, Field(ge=1, le=5)], ...], BeforeValidator(_split_numbers), Field(min_length=1)
]  # of corruptions


class Section(BaseModel):
    """A section (table) of a config: frozen; keys that it does not declare are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
