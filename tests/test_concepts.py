"""docs/concepts.md: its pictures are those that its script draws, and its small comparison comes out as printed."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from tests.conftest import Torso

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "concepts.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_concepts", DOCS / "make_concepts.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_pictures_are_those_that_the_script_draws(script: ModuleType) -> None:
    assert set(re.findall(r"\]\((concept-[\w-]+)\.svg\)", PAGE)) == set(script.PICTURES)
    for name, draw in script.PICTURES.items():
        assert (DOCS / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(), "run: python docs/make_concepts.py"


def test_the_words_of_a_picture_lie_inside_it(script: ModuleType) -> None:
    """A letter is at most 0.62 of the font's size wide, on average."""
    for name, draw in script.PICTURES.items():
        picture = ElementTree.fromstring(draw().svg())
        _, _, width, height = map(float, picture.attrib["viewBox"].split())
        for text in picture.iter("{http://www.w3.org/2000/svg}text"):
            long = 0.62 * float(text.attrib["font-size"]) * len(text.text or "")
            left = float(text.attrib["x"]) - (long / 2 if text.attrib["text-anchor"] == "middle" else 0)
            assert left > 0, (name, text.text)
            assert left + long < width, (name, text.text)
            assert 0 < float(text.attrib["y"]) < height, (name, text.text)


def test_the_comparison_comes_out_as_printed(torso: Torso) -> None:
    """Without local-only, which takes longer than all the others; other CPUs round otherwise."""
    (command,) = re.findall(r"^\$ torso (.*)$", PAGE, re.MULTILINE)
    printed = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) ± [\d.]+ \| ([\d.]+) ±", PAGE, re.MULTILINE)
    assert [row[0] for row in printed] == ["local-only", "fedavg", "fedper", "fedbabu"]
    words = [word for word in command.split() if word != "local-only"]
    said = torso(*words, "--json", "--quiet", sets=("measure.names=generic,initial,personalized",))
    found = {row["method"]: row["accuracy"] for row in json.loads(said.out)}
    for method, *expected in printed[1:]:
        ours = [found[method][name]["mean"] for name in ("generic", "initial", "personalized")]
        assert ours == pytest.approx([float(number) for number in expected], abs=2.0), method
