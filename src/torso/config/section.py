"""What all sections of a config have in common, and kinds of values that they alone use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torso.kinds import CountOrZero


def _split(value: Any) -> Any:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _split_numbers(value: Any) -> Any:
    pieces = _split(value) if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(pieces, list | tuple):
        return pieces
    return [int(piece) if isinstance(piece, str) and piece.isdecimal() else piece for piece in pieces]


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]  # a list, or names with commas between them
Counts = Annotated[tuple[CountOrZero, ...], BeforeValidator(_split_numbers)]  # the same with numbers
Severities = Annotated[
    tuple[Annotated[int, Field(ge=1, le=5)], ...], BeforeValidator(_split_numbers), Field(min_length=1)
]  # of corruptions


class Section(BaseModel):
    """A table of keys: frozen, and with no other keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
