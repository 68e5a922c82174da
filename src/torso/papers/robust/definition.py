"""cifar10.toml and digits.toml as validated data: methods, server rules, and attacks in the order of their worth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from torso.papers.experiments.definition import Strict, check_known, read_definition

FILE, SMALL = (Path(__file__).with_name(name) for name in ("cifar10.toml", "digits.toml"))
NONE, MEAN = "none", "mean"  # the attack and the rule that others are compared with


class PlannedMethod(Strict):
    """`shares`: what travels, in words. `alone`: nothing does, so that no attack and no rule reaches the clients."""

    label: str
    shares: str
    alone: bool = False
    sets: tuple[str, ...]


class Rule(Strict):
    """`{length}` in a setting stands for the median length of the method's uploads without an attack."""

    label: str
    sets: tuple[str, ...]


class PlannedAttack(Strict):
    """`measures`: what is measured besides."""

    label: str
    sets: tuple[str, ...]
    measures: tuple[str, ...] = ()


class Evidence(Strict):
    """`lengths`: the number of rounds in which the lengths of uploads are measured. `stack`: how many clients may train
    side by side."""

    title: str
    seeds: int = Field(ge=1)
    lengths: int = Field(ge=1)
    stack: int = Field(ge=1)
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
    return read_definition(Evidence, path)
