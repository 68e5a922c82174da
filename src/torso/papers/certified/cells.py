"""The small runs that are certified: every preset of the catalogue, and those of cells.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torso.config import Config
from torso.methods import Method, methods
from torso.papers.experiments.definition import Strict, check_known, read_definition

FILE = Path(__file__).with_name("cells.toml")


class Elsewhere(Strict):
    """Cells on data that do not come with Torso: the name of their file, and the presets that run on them."""

    file: str
    sets: tuple[str, ...]
    presets: tuple[str, ...]


class Definition(Strict):
    """The contents of cells.toml."""

    common: tuple[str, ...]  # settings of all cells
    presets: Mapping[str, tuple[str, ...]]  # preset → what it needs besides the common settings
    cells: Mapping[str, tuple[str, ...]]  # further cells: name → settings
    elsewhere: Mapping[str, Elsewhere]  # data set → cells on it


@dataclass(frozen=True)
class Cell:
    """A small run that is certified."""

    name: str
    sets: tuple[str, ...]
    file: str = ""  # of the data, if they do not come with Torso

    def config(self, root: str = "") -> Config:
        return Config.load(None, [*self.sets, *([f"data.root={root}"] if root else [])])


def cells() -> tuple[Cell, ...]:
    """All certified cells."""
    known = read_definition(Definition, FILE)
    check_known(known.presets, _presets(), "cells.toml: the preset")
    return tuple(_cells(known))


def _cells(known: Definition) -> Iterator[Cell]:
    for name in sorted(_presets()):
        yield Cell(f"preset {name}", (*known.common, f"method.name={name}", *known.presets.get(name, ())))
    for name, sets in known.cells.items():
        yield Cell(name, (*known.common, *sets))
    for data, more in known.elsewhere.items():
        for name in more.presets:
            yield Cell(f"{data} {name}", (*known.common, *more.sets, f"method.name={name}"), more.file)


def _presets() -> Mapping[str, Method]:
    """Torso's own presets. Presets of plugins have no records."""
    return methods.own or {}
