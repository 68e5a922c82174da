"""pretrained.toml as validated data: settings, methods with grids of rates, and blocks, the most important first."""

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
    """A setting: the data, how they are dealt, and what is measured."""

    title: str
    dataset: str
    sets: tuple[str, ...]
    published: str = ""  # the data set of the paper's tables with numbers to compare
    keys: dict[str, Any] = Field(default_factory=dict)  # by which claims distinguish settings
    body: str = ""  # a name in `bodies`
    measures: tuple[str, ...] = ("generic",)  # at the end of a run
    chooses: int = 1  # the sum of this many first measures on validation data chooses the rates
    rounds: float = Field(1.0, gt=0)  # share of a method's rounds
    samples: int = 0  # of the training set, for the estimate of time


class PlannedMethod(Strict):
    """A method of the experiments and its grid of rates."""

    label: str  # the paper's name
    sets: tuple[str, ...]
    optimizer: str = "FedAvg"  # the paper's name
    rounds: int = Field(0, ge=0)  # 0: the method has no rounds
    grid: Grid = Field(default_factory=dict)


class Block(Strict):
    """Every method in every setting, at seeds 0 to `seeds` - 1. A cell of two blocks is run once."""

    name: str
    settings: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: int = Field(3, ge=1)


class Evidence(Strict):
    """The definition of the experiments."""

    title: str
    validation: float = Field(gt=0, lt=1)  # share of every client's training samples on which rates are chosen
    tuning: float = Field(gt=0, le=1)  # share of the rounds that tuning runs have
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
    """The definition in a file."""
    return read_definition(Evidence, path)
