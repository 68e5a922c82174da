"""The description that a client sends before the first round: no samples, no labels, no class counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from torso import __version__
from torso.data.inputs import Known
from torso.data.sources.table import number
from torso.data.table_columns import Column
from torso.errors import RequestError
from torso.kinds import CountOrZero, FailFastTuple
from torso.reading import parse_record

TORSO, TORCH = __version__, str(torch.__version__)
CLIENT_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"


def _printable(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("expected: letters that can be printed")
    return text


PrintableText = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_printable)]
ClientName = Annotated[str, StringConstraints(pattern=f"^{CLIENT_NAME}$")]
AnyInput = Annotated[Known, Field(discriminator="kind")]


class Record(BaseModel):
    """The base of data that are sent to another machine as JSON, and validated there."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def read(cls, data: str | bytes, whose: str) -> Self:
        """Parse JSON from another machine; `whose` begins the message of the RequestError."""
        try:
            parse_record(data)
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(step) for step in first["loc"]) or cls.__name__
            found = " ".join(repr(first.get("input")).split())[:80]
            raise RequestError(f"{whose}: {where} = {found} is not accepted: {first['msg']}") from None
        except (RequestError, ValueError) as error:
            raise RequestError(f"{whose}: {error}") from None


class Description(Record):
    """What a client says of itself and its data.

    Sums of its samples, for mean and std, are sent with it as tensors (`SiteData.moments`)."""

    name: ClientName
    torso: PrintableText  # version
    torch: PrintableText  # version
    classes: FailFastTuple[PrintableText] = Field(min_length=1, max_length=100_000)  # names, in the client's own order
    input: AnyInput  # the kind of sample, with mean and std if the client's files have them
    columns: FailFastTuple[Column] = Field(
        (), max_length=100_000
    )  # of a table: columns and categories of its training rows
    train_samples: CountOrZero
    test_samples: CountOrZero
    augment: PrintableText = "none"  # what the client's source suggests
    dataset: str = Field("", max_length=200)  # name of the data, if the file has one

    @property
    def constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std from the client's files; empty if they have none."""
        return getattr(self.input, "mean", ()), getattr(self.input, "std", ())


def by_class_name(names: Iterable[str]) -> list[str]:
    """Class names, without duplicates, in the order of their labels: numbers by value, then texts by code point."""

    def key(name: str) -> tuple[int, float, str]:
        value = number(name)
        return (1, 0.0, name) if value is None else (0, value, name)

    return sorted(set(names), key=key)
