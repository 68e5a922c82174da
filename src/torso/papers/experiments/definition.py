"""Definitions of experiments in TOML files: sections without unknown keys, and an error message of one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from torso.config import explain, read_toml
from torso.errors import RequestError, did_you_mean


class Strict(BaseModel):
    """A section without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Definition = TypeVar("Definition", bound=Strict)


def read_definition(kind: type[Definition], path: Path) -> Definition:
    """The definition in a TOML file. Raises a RequestError that names the first wrong key."""
    try:
        return kind(**read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        said = explain(error) if first["loc"] and first["type"] != "extra_forbidden" else first["msg"]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"{path.name}: {where}: {said.removeprefix('Value error, ')}") from None


def check_known(names: Iterable[str], there: Mapping[str, Any], what: str) -> None:
    """Raise a ValueError if a name is not in `there`. `what`: words for the kind of name."""
    for name in names:
        if name not in there:
            raise ValueError(f"{what} {name!r} is unknown{did_you_mean(name, there)}")
