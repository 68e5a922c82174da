"""The rooms of papers/ stand in an order, and imports walk one way."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import torso.papers

HOME = Path(torso.papers.__file__).parent
ROOMS = ("experiments", "tables", "board", "pretrained", "privacy", "robust", "certified", "pages", "commands", "docs")
HERE = "torso.papers."


def _modules() -> dict[str, Path]:
    """`tables.plan` → its file."""
    found = {".".join(path.relative_to(HOME).with_suffix("").parts): path for path in HOME.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name != "__init__"}


def _imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of papers/ that a file imports, also inside of functions and for types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names} | {str(node.module)}
    inside = {name.removeprefix(HERE) for name in found if name.startswith(HERE)}
    deepest = {name for name in inside if not any(other.startswith(f"{name}.") for other in inside)}
    return {name if name in known else name.rpartition(".")[0] for name in deepest}


def test_a_file_imports_from_its_own_room_and_from_rooms_before_it() -> None:
    known = _modules()
    for name, path in known.items():
        for other in _imported(path, known):
            mine, theirs = (ROOMS.index(each.partition(".")[0]) for each in (name, other))
            assert theirs <= mine, f"{name} imports {other}, which stands after it"


def test_imports_form_no_cycle() -> None:
    known = _modules()
    imports = {name: _imported(path, known) for name, path in known.items()}
    assert imports["tables.reproduce"] >= {"tables.plan", "experiments.runner"}  # the walk sees them
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files


def test_the_rooms_are_told_in_their_order() -> None:
    said = str(torso.papers.__doc__)
    places = [said.index(f"\n    {room} ") for room in ROOMS[:-1]]
    assert places == sorted(places)
    assert {path.name for path in HOME.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS[:-1])
