"""CONTRIBUTING.md works as written: its method, its test, its command; CITATION.cff can be read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import Torso
from tests.test_rooms import ROOMS

from torso.methods import AXES, methods
from torso.methods.bibliography import papers

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLUGIN, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def _forgotten() -> Iterator[None]:
    """What the page registers is forgotten afterwards."""
    registries = (methods, *AXES.values())
    kept = [dict(registry) for registry in registries]
    yield
    sys.modules.pop("smooth", None)
    for registry, before in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(before)


@pytest.mark.usefixtures("_forgotten")
def test_the_method_of_the_page_works_as_written(torso: Torso) -> None:
    Path("smooth.py").write_text(PLUGIN, encoding="utf-8")
    (command,) = re.findall(r"^\$ torso (.*)$", PAGE, re.MULTILINE)
    small = ("train.rounds=2", "data.clients=10", "measure.names=initial")
    said = torso(*command.split(), "--json", "--quiet", sets=small)
    assert said.status == 0, said.err
    assert {row["method"] for row in json.loads(said.out)} == {"fedbabu", "fedbabu-smooth"}
    names: dict[str, Any] = {}
    exec(TEST, names)
    names["test_smoothing_by_hand"]()
    said = torso("run", "--plugin", "smooth", sets=("method.name=fedbabu-smooth", "method.objective.epsilon=1.5"))
    assert said.status == 2
    assert "method.objective.epsilon" in said.err


def test_the_table_of_rooms_is_the_order_of_imports() -> None:
    assert tuple(re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE)) == ROOMS


def test_the_page_names_files_and_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", PAGE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE) + re.findall(r"`((?:src|tests)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_the_citation_names_the_four_papers_as_the_list_of_papers_does() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version"} <= cff.keys()
    studied = [paper for paper in papers().values() if paper.topic == "studied"]
    assert [(r["title"], r["year"], r["url"]) for r in cff["references"]] == [
        (paper.title, paper.year, paper.address) for paper in studied
    ]
    authors = [", ".join(f"{a['given-names']} {a['family-names']}" for a in r["authors"]) for r in cff["references"]]
    assert authors == [paper.authors for paper in studied]
    assert f'version = "{cff["version"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_tests_that_make_names_are_there() -> None:
    """A test file that was renamed would end `make quick` before its first test."""
    if shutil.which("make") is None:
        pytest.skip("no make here")
    told = subprocess.run(["make", "-n", "quick", "test-cuda"], check=True, cwd=ROOT, capture_output=True, text=True)
    named = set(re.findall(r"\btests/[\w/.]+", told.stdout))
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
