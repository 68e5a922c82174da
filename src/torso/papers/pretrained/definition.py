"""pretrained.toml as validated data: settings, methods with their grids of rates, and blocks in the order of worth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from torso.papers.experiments.definition import Strict, check_known, read_definition

FILE = Path(__file__).with_name("pretrained.toml")
Grid = dict[str, tuple[float, ...]]  # key → the values that are tried


class TrainedBody(Strict):
    """A body that is trained here first, once for each seed."""

    title: str
    sets: tuple[str, ...]


class Setting(Strict):
    """Data and how they are dealt.

    `published`: the data set of the paper's tables whose numbers stand beside ours. `keys`: what tells this setting
    from others in a claim. `body`: a name of `bodies`. `measures`: what is measured at the end; the sum of the first
    `chooses` of them on validation data chooses the rates. `rounds`: share of a method's rounds. `samples`: training
    samples, for the estimate of time."""

    title: str
    dataset: str
    sets: tuple[str, ...]
    published: str = ""
    keys: dict[str, Any] = Field(default_factory=dict)
    body: str = ""
    measures: tuple[str, ...] = ("generic",)
    chooses: int = 1
    rounds: float = Field(1.0, gt=0)
    samples: int = 0


class PlannedMethod(Strict):
    """`label` and `optimizer`: the paper's names. `rounds` 0: the method has none."""

    label: str
    sets: tuple[str, ...]
    optimizer: str = "FedAvg"
    rounds: int = Field(0, ge=0)
    grid: Grid = Field(default_factory=dict)


class Block(Strict):
    """Every method in every setting, at the first so many seeds. A cell of two blocks is run once."""

    name: str
    settings: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: int = Field(3, ge=1)


class Evidence(Strict):
    title: str
    validation: float = Field(gt=0, lt=1)  # share of every client's training samples that rates are chosen on
    tuning: float = Field(gt=0, le=1)  # share of the rounds that rates are chosen in
    looks: int = Field(ge=1)  # how often accuracy is measured during training
    config: dict[str, Any]
    bodies: dict[str, TrainedBody] = Field(default_factory=dict)
    settings: dict[str, Setting]
    methods: dict[str, PlannedMethod]
    blocks: tuple[Block, ...]
    caveats: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_exist(self) -> Evidence:
        for block in self.blocks:
            check_known(block.settings, self.settings, f"blocks.{block.name}: the setting")
            check_known(block.methods, self.methods, f"blocks.{block.name}: the method")
        check_known([s.body for s in self.settings.values() if s.body], self.bodies, "settings: the body")
        return self


@cache
def load(path: Path = FILE) -> Evidence:
    return read_definition(Evidence, path)
