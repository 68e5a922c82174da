"""docs/definitions.md has every section that the code cites, and names presets, keys and choices that exist."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from torso.config import describe_keys
from torso.learn.attacks import attacks
from torso.methods import AXES, methods
from torso.methods.bibliography import TOPICS, papers
from torso.methods.parse import axis_to_config
from torso.registry import cited
from torso.report.anatomy import explain
from torso.report.docs import fill

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
HEADING = re.compile(r'^#{2,3} <a id="d([\d.]+)"></a>([\d.]+) (.+)$', re.MULTILINE)
OUR_TOML = ("method", "data", "model", "train", "personalize", "measure", "attack", "run")
KEY = re.compile(rf"`((?:{'|'.join(OUR_TOML)})\.[a-z_.0-9]+)(?: = ([^`]+))?`")


def text_files() -> list[Path]:
    folders = [ROOT / name for name in ("src", "tests", "docs", "bench", "examples")]
    found = [path for folder in folders for ending in ("py", "md", "toml") for path in folder.rglob(f"*.{ending}")]
    return [*found, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@cache
def sections() -> dict[str, str]:
    """The text of each section by its number; a chapter's is that before its first section."""
    _, *parts = re.split(r"^(?=#{2,3} <a id)", PAGE, flags=re.MULTILINE)
    return {HEADING.match(part).group(1): part for part in parts}  # type: ignore[union-attr]


def test_a_citation_is_read_with_all_its_numbers() -> None:
    assert cited("FedPer (spec 4.2, 9.4) and spec 9.1 to 9.3") == ["4.2", "9.4", "9.1", "9.3"]
    assert cited("(spec 7.1 and 18, point 7), spec 1.2, steps 2 to 4") == ["7.1", "18", "1.2"]
    assert cited("the whole specification; spec without a number") == []


def test_every_section_that_the_code_cites_is_defined() -> None:
    missing = {
        f"{path.relative_to(ROOT)} cites {number}"
        for path in text_files()
        if path.name != "test_definitions.py"
        for number in cited(path.read_text(encoding="utf-8"))
        if number not in sections()
    }
    assert missing == set()


def test_headings_are_numbered_in_order_and_carry_their_number_as_anchor() -> None:
    found = HEADING.findall(PAGE)
    assert len(found) == len(re.findall(r"^#{2,3} ", PAGE, re.MULTILINE))
    assert all(anchor == number for anchor, number, _ in found)
    order = [tuple(map(int, number.split("."))) for _, number, _ in found]
    assert all(before < after for before, after in pairwise(order))


def test_links_to_definitions_lead_somewhere() -> None:
    links = {
        (path.name, number)
        for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
        for page, number in re.findall(r"\]\(([\w./]*)#d([\d.]+)\)", path.read_text(encoding="utf-8"))
        if page.endswith("definitions.md") or path.name == "definitions.md"
    }
    assert links
    assert {(page, number) for page, number in links if number not in sections()} == set()


@pytest.mark.parametrize("name", sorted(methods.own))
def test_the_section_that_a_method_cites_names_it(name: str) -> None:
    numbers = cited(methods[name].about)
    assert numbers
    assert any(re.search(rf"`{name}[` ]", sections()[number]) for number in numbers)


def test_keys_and_choices_on_the_page_exist() -> None:
    """`method.drift.mu = 0.01`, `train.schedule`, `method.personal = kept`: what a reader would type."""
    unknown = [key for key, _ in KEY.findall(PAGE) if key not in known_keys()]
    assert unknown == []
    chosen = [(key, value) for key, value in KEY.findall(PAGE) if value and key.removeprefix("method.") in AXES]
    assert len(chosen) > 10
    assert [(key, value) for key, value in chosen if value not in AXES[key.removeprefix("method.")]] == []


def known_keys() -> set[str]:
    options = {
        f"method.{axis}.{option}"
        for axis, registry in AXES.items()
        for choice in registry.values()
        for option in axis_to_config(registry, choice())
    }
    plain = {f"method.{name}" for name in vars(methods["fedavg"])} | {f"method.{axis}" for axis in AXES}
    share = {f"method.share.{name}" for name in ("part", "rest", "frozen")}
    kinds = {f"attack.kind.{option}" for cls in attacks.values() for option in axis_to_config(attacks, cls())}
    return {*describe_keys(), *options, *plain, *share, *kinds}


@pytest.mark.parametrize("name", ["methods", "papers"])
def test_generated_lists_are_up_to_date(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert f"<!-- generated: {name} -->" in text
    assert fill(text) == text, "run: python -m torso.report.docs"


def test_every_method_has_a_paper_with_title_and_link() -> None:
    known = papers()
    assert {method.paper for method in methods.own.values()} - {*known, "–"} == set()
    assert {paper.topic for paper in known.values()} == set(TOPICS)
    for label, paper in known.items():
        assert re.fullmatch(r"https://\S+", paper.address), label
        assert bool(paper.arxiv) != bool(paper.link), label
        assert not paper.arxiv or re.fullmatch(r"\d{4}\.\d{4,5}", paper.arxiv), label
        assert paper.year >= int(f"20{paper.arxiv[:2]}") if paper.arxiv else True, label


def test_methods_show_names_the_paper_and_the_definition() -> None:
    said = dict(explain("fedper"))
    assert said["from"].endswith("https://arxiv.org/abs/1912.00818")
    assert said["definition"] == "docs/definitions.md, 4.2"
    assert dict(explain("local-only"))["from"] == "–"
