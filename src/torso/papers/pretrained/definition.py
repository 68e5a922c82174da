"""pretrained.toml as validated data: settings, methods with their grids of rates, and blocks in the order of worth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from torso.config import explain, read_toml
from torso.errors import RequestError, did_you_mean

FILE = Path(__file__).with_name("pretrained.toml")
Grid = dict[str, tuple[float, ...]]  # key → the values that are tried


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainedBody(_Strict):
    """A body that is trained here first, once for each seed."""

    title: str
    sets: tuple[str, ...]


class Setting(_Strict):
    """Data and how they are dealt.

    `published`: the data set of the paper's tables whose numbers stand beside ours. `keys`: what tells this setting
    from others in a claim. `body`: a name of `bodies`. `measures`: what is measured at the end; the sum of the first
    `chooses` of them on validation data chooses the rates. `rounds`: share of a method's rounds. `samples`: training
    samples, for the estimate of time."""

    title: str
    dataset: str
    sets: tuple[str, ...]
    published: str = ""
    keys: dict[str, Any] = {}
    body: str = ""
    measures: tuple[str, ...] = ("generic",)
    chooses: int = 1
    rounds: float = Field(1.0, gt=0)
    samples: int = 0


class PlannedMethod(_Strict):
    """`label` and `optimizer`: the paper's names. `rounds` 0: the method has none."""

    label: str
    sets: tuple[str, ...]
    optimizer: str = "FedAvg"
    rounds: int = Field(0, ge=0)
    grid: Grid = {}


class Block(_Strict):
    """Every method in every setting, at the first so many seeds. A cell of two blocks is run once."""

    name: str
    settings: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: int = Field(3, ge=1)


class Evidence(_Strict):
    title: str
    validation: float = Field(gt=0, lt=1)  # share of every client's training samples that rates are chosen on
    tuning: float = Field(gt=0, le=1)  # share of the rounds that rates are chosen in
    looks: int = Field(ge=1)  # how often accuracy is measured during training
    config: dict[str, Any]
    bodies: dict[str, TrainedBody] = {}
    settings: dict[str, Setting]
    methods: dict[str, PlannedMethod]
    blocks: tuple[Block, ...]
    caveats: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_exist(self) -> Evidence:
        for block in self.blocks:
            _known(block.settings, self.settings, f"blocks.{block.name}: the setting")
            _known(block.methods, self.methods, f"blocks.{block.name}: the method")
        _known([s.body for s in self.settings.values() if s.body], self.bodies, "settings: the body")
        return self


def _known(names: Any, there: dict[str, Any], what: str) -> None:
    for name in names:
        if name not in there:
            raise ValueError(f"{what} {name!r} is unknown{did_you_mean(name, there)}")


@cache
def load(path: Path = FILE) -> Evidence:
    try:
        return Evidence(**read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        said = explain(error) if first["loc"] and first["type"] != "extra_forbidden" else first["msg"]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"{path.name}: {where}: {said.removeprefix('Value error, ')}") from None
