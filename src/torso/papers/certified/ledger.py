"""docs/reproduction/cells.json: the records of all cells, the machines that made them, and runs that compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torso
from torso.data import DataCache
from torso.errors import RequestError
from torso.papers.certified.cells import Cell
from torso.papers.certified.record import Record, differences
from torso.papers.experiments.code_path import code_path
from torso.reading import parse_json
from torso.results.files import write_text
from torso.results.result import versions
from torso.runs.job import data_of

LEDGER = "cells.json"
AGAIN = "python -m torso.papers.certified"
Note = Callable[[str], None]


def here() -> dict[str, str]:
    """What decides the bits of a run on this machine's CPU: code path, versions of PyTorch and NumPy."""
    known = versions()
    return {"path": code_path(), "torch": known["torch"], "numpy": known["numpy"]}


@dataclass(frozen=True)
class Ledger:
    """The records of all cells. Cells may have been made on different machines."""

    records: Mapping[str, Record]  # by the name of the cell
    made: Mapping[str, Mapping[str, str]]  # name of the cell → what decided its bits (`here`)

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """The ledger of a folder; empty if the folder has none."""
        path = folder / LEDGER
        if not path.is_file():
            return cls({}, {})
        try:
            tree = parse_json(path.read_text("utf-8"))
            machines = tree["machines"]
            records = {name: Record.from_json(_without(one, "on")) for name, one in tree["cells"].items()}
            return cls(records, {name: machines[one["on"]] for name, one in tree["cells"].items()})
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RequestError(f"{str(path)!r} is damaged ({error!r}). Make it again: {AGAIN}") from None

    def write(self, folder: Path) -> None:
        """Write the ledger with a line for each cell, so that a diff shows which cells have changed."""
        machines: list[Mapping[str, str]] = []
        for made in self.made.values():
            machines += [made] if made not in machines else []
        lines = [
            f"  {json.dumps(name)}: {json.dumps({'on': machines.index(self.made[name]), **record.as_json()})}"
            for name, record in self.records.items()
        ]
        cells = "{\n" + ",\n".join(lines) + "\n }"
        write_text(folder / LEDGER, f'{{"machines": {json.dumps(machines)},\n "cells": {cells}}}\n')

    def exact(self, name: str) -> bool:
        """Whether this machine has to give the same bits as the record."""
        return self.made[name] == here()


def _without(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in tree.items() if name != key}


def roots(known: Iterable[Cell], root: Path | None) -> dict[str, str]:
    """File of data → its path, for the files that exist."""
    names = {cell.file for cell in known if cell.file}
    return {name: str(root / name) for name in names if root is not None and (root / name).is_file()}


def run_cells(known: Iterable[Cell], there: Mapping[str, str]) -> Iterator[tuple[Cell, Record | None]]:
    """Run the cells one after another, and yield their records; None if the data are missing. Cells share what they
    read."""
    data_cache = DataCache()
    for cell in known:
        if cell.file and cell.file not in there:
            yield cell, None
            continue
        config = cell.config(there.get(cell.file, ""))
        yield cell, Record.of(torso.run(config, federation=data_of(config, data_cache)))


def moved(ledger: Ledger, known: Iterable[Cell], there: Mapping[str, str]) -> tuple[dict[str, list[str]], list[str]]:
    """Run the cells and compare. Returns name of a cell → how its run differs, for the cells that differ; and the
    cells whose data are missing."""
    found: dict[str, list[str]] = {}
    absent: list[str] = []
    for cell, now in run_cells(known, there):
        if now is None:
            absent.append(cell.name)
        elif cell.name not in ledger.records:
            found[cell.name] = ["it has no record yet"]
        elif wrong := differences(ledger.records[cell.name], now, exact=ledger.exact(cell.name)):
            found[cell.name] = wrong
    return found, absent


def said(found: Mapping[str, list[str]]) -> str:
    """The differences in words, and what to do about them."""
    lines = [f"{name}: {'; '.join(wrong)}" for name, wrong in found.items()]
    return "\n".join([*lines, f"If the change is intended: {AGAIN}, and say why in the commit"])
