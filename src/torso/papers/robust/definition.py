"""cifar10.toml and digits.toml as validated data: methods, server rules, and attacks, the most important first."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from torso.papers.experiments.definition import Strict, check_known, read_definition

FILE, SMALL = (Path(__file__).with_name(name) for name in ("cifar10.toml", "digits.toml"))
NONE, MEAN = "none", "mean"  # the attack and the rule that others are compared with


class PlannedMethod(Strict):
    """A method of the experiments."""

    label: str
    shares: str  # what travels, in words
    alone: bool = False  # nothing travels, so attacks and rules change nothing
    sets: tuple[str, ...]


class Rule(Strict):
    """A server rule of the experiments."""

    label: str
    sets: tuple[str, ...]  # `{length}` is replaced by the median length of the method's uploads without an attack


class PlannedAttack(Strict):
    """An attack of the experiments."""

    label: str
    sets: tuple[str, ...]
    measures: tuple[str, ...] = ()  # further measures of its runs


class Evidence(Strict):
    """The definition of the experiments."""

    title: str
    seeds: int = Field(ge=1)
    lengths: int = Field(ge=1)  # number of rounds in which the lengths of uploads are measured
    stack: int = Field(ge=1)  # how many clients may train in one stack
    config: dict[str, Any]
    methods: dict[str, PlannedMethod]
    rules: dict[str, Rule]
    attacks: dict[str, PlannedAttack]
    caveats: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_what_others_are_compared_with(self) -> Evidence:
        check_known([NONE], self.attacks, "attacks: the attack")
        check_known([MEAN], self.rules, "rules: the rule")
        return self


@cache
def load(path: Path = FILE) -> Evidence:
    """The definition in a file."""
    return read_definition(Evidence, path)
