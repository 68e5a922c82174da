"""What the documents say is what the code does."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Torso

from torso.papers.board import published
from torso.papers.pages import leaderboard, pretrained, privacy, reproduction, robustness, tried
from torso.papers.pages.glance import of
from torso.papers.pages.scatter import scatter
from torso.papers.pretrained import records
from torso.papers.pretrained.answers import own_answers
from torso.papers.tables.published import PAPERS
from torso.report.docs import fill

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "docs/reference.md"])
def test_generated_sections_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert fill(text) == text, "run: python -m torso.report.docs"


def test_the_pages_of_the_reproduction_are_up_to_date() -> None:
    folder = ROOT / "docs" / "reproduction"
    tables, own = reproduction.shown(folder), own_answers(records.read(folder.parent / "pretrained"))
    claims = reproduction.claims_page(tables, own)
    for name, made in (("README.md", reproduction.overview(tables, own)), ("claims.md", claims)):
        text = (folder / name).read_text(encoding="utf-8")
        assert text == reproduction.plain_lines(made), "run: python -m torso.papers.docs"
    assert (folder / "fedrod.md").read_text(encoding="utf-8") == tried.page(folder), "run: python -m torso.papers.docs"
    for key, paper in PAPERS.items():
        there = (folder / f"{key}.svg").read_text("utf-8") if (folder / f"{key}.svg").exists() else ""
        assert there == scatter(paper, of(key, tables)), "run: python -m torso.papers.docs"


def test_the_page_of_the_leaderboard_is_up_to_date() -> None:
    made = leaderboard.page(published.read())
    assert (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8") == made, "run: python -m torso.papers.docs"


def test_the_page_on_bodies_trained_elsewhere_and_its_pictures_are_up_to_date() -> None:
    folder = ROOT / "docs" / "pretrained"
    page = pretrained.Page(records.read(folder))
    assert (ROOT / "docs" / "pretrained.md").read_text("utf-8") == page.text(), "run: python -m torso.papers.docs"
    assert {path.stem: path.read_text("utf-8") for path in folder.glob("*.svg")} == page.pictures


def test_the_measured_part_of_the_page_on_privacy_and_its_pictures_are_up_to_date() -> None:
    folder, page = ROOT / "docs" / "privacy", (ROOT / "docs" / "privacy.md").read_text("utf-8")
    part = privacy.read(folder)
    assert privacy.placed(page, part.text()) == page, "run: python -m torso.papers.docs"
    assert {path.stem: path.read_text("utf-8") for path in folder.glob("*.svg")} == part.pictures


def test_the_tables_of_attacks_and_their_pictures_are_up_to_date() -> None:
    made, page = robustness.sections(ROOT / "docs"), (ROOT / "docs" / robustness.PAGE).read_text("utf-8")
    assert all(f"<!-- generated: robustness-{section.name} -->" in page for section in made)
    assert robustness.filled(page, made) == page, "run: python -m torso.papers.docs"
    pictures = {section.name: section.picture for section in made if section.picture}
    assert {p.stem: p.read_text("utf-8") for p in (ROOT / "docs" / robustness.FOLDER).glob("*.svg")} == pictures


def test_every_file_that_the_documents_link_to_exists() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_nothing_shipped_refers_to_what_is_not_shipped() -> None:
    for path in [*(ROOT / "src").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert "../shared" not in path.read_text(encoding="utf-8"), path


def test_the_tables_of_scale_are_those_that_the_bench_makes() -> None:
    """docs/scale.md is made by bench/scale.py from its named rates and from what bench/cluster.py measured."""
    spec = importlib.util.spec_from_file_location("scale", ROOT / "bench" / "scale.py")
    assert spec is not None
    assert spec.loader is not None
    scale = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = scale  # its dataclass looks itself up
    spec.loader.exec_module(scale)
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert scale.fill(page) == page
    assert all(scale.BEGIN.format(name) in page for name in scale.sections())


def test_the_page_on_models_works_as_written(torso: Torso) -> None:
    """Its blocks in their order, then its commands."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    new, test = names["new_images"], names["new_labels"]
    right = [
        (net(net.prepare(new)).argmax(dim=1).numpy() == test).mean() for net in (names["at_once"], names["trained"])
    ]
    assert right[1] > max(0.9, right[0])
    assert len(names["everybody"]) == 20
    commands = re.findall(r"^\$ torso (.*)$", page.replace("\\\n", ""), re.MULTILINE)
    for command in commands:
        assert torso(*command.split()).status == 0, command
    assert [len(list(Path("out", name).iterdir())) for name in ("all", "third", "new")] == [22, 4, 2]


def test_the_page_on_real_data_works_as_written(torso: Torso, capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks in their order, of commands and of Python: the runs learn, and the comments behind prints are true."""
    page = (ROOT / "docs" / "real-data.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    printed: list[str] = []
    learned = set[bool]()
    for before, language, block in re.findall(r"^(.*)\n```(python|console)\n((?s:.*?))```", page, re.MULTILINE):
        if before.startswith("<!-- not run:"):
            continue
        if language == "python":
            exec(block, names)
            learned |= {"embedding-mean" in block and names["result"].accuracy["personalized"].mean > 80}
            printed += [line for line in capsys.readouterr().out.splitlines() if line]
            continue
        for command in re.findall(r"^\$ torso (.*)$", block.replace("\\\n", ""), re.MULTILINE):
            small = ("train.rounds=3", "personalize.epochs=1") if command.startswith("run") else ()
            said = torso(*command.split(), sets=small)
            assert said.status == 0, (command, said.err)
    assert printed == re.findall(r"^print\(.*\)  # (.*)$", page, re.MULTILINE)
    assert names["classes"].tolist() == [0, 1]
    assert True in learned
