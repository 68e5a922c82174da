"""The order of the rooms is true: a room imports from those before it, and the files of a room form no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import torso

SOURCE = Path(torso.__file__).parent
ROOMS = (
    *("data", "nets", "learn", "server", "personal", "methods", "engine", "measure", "results", "runs", "parallel"),
    *("federation", "audit", "report", "papers", "advise"),
)
OUTSIDE = {"config", "cli", ""}  # config names what is in all rooms: rooms look at it for types only


def files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] in ROOMS]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports(text: str) -> Iterator[str]:
    """What a file imports of torso, anywhere in it: for types, inside functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("torso.") for alias in node.names if alias.name.startswith("torso."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "torso":
            module = node.module.removeprefix("torso").lstrip(".")
            for alias in node.names:
                below = f"{module}.{alias.name}".lstrip(".")
                yield below if _exists(below) else module


@cache
def _exists(name: str) -> bool:
    path = SOURCE / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def backward(name: str, text: str) -> list[str]:
    """Imports of a later room."""
    here = ROOMS.index(name.partition(".")[0])
    rooms = {found: found.partition(".")[0] for found in imports(text)}
    return [found for found, room in rooms.items() if room in ROOMS and ROOMS.index(room) > here]


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_a_room_imports_from_those_before_it(path: Path) -> None:
    assert backward(name_of(path), path.read_text(encoding="utf-8")) == []


def test_a_wrong_import_would_be_found() -> None:
    assert backward("measure.base", "from torso.runs.rounds import play_round") == ["runs.rounds"]
    assert backward("learn.local", "def f():\n    from torso import runs, data") == ["runs"]


def test_files_form_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in files():
        found = set(imports(path.read_text(encoding="utf-8")))
        graph[name_of(path)] = {name for name in found if name not in OUTSIDE and name != name_of(path)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' → '.join(error.args[1])}")
