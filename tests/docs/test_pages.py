"""Every command and every piece of Python in the documentation runs as it is written, but for fewer rounds and epochs.

The blocks of a page are run in their order, in an empty folder that has the repository's examples.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from tests.conftest import Torso
from tests.docs.blocks import REASONS, ROOT, RUN, SHOWN, Block, blocks, pages
from tests.nets.test_zoo import library

from torso.data import partitions, sources
from torso.learn.attacks import attacks
from torso.measure import measures
from torso.methods import AXES, methods
from torso.nets import bodies
from torso.registry import Registry

# added to what a page's commands train; four rounds, since docs/report.md draws what was measured every second round
SMALL = ("train.rounds=4", "train.local_epochs=1", "personalize.epochs=1", "data.clients=20")
TRAINS = ("run", "compare")
ELSEWHERE = {  # pages that need more than a folder, and the tests that run them
    "docs/federation.md": "tests/federation/test_docs.py",
    "docs/models.md": "tests/test_docs.py",
    "docs/real-data.md": "tests/test_docs.py",
}
CODE_OF_EXAMPLES = ("docs/extending.md", "docs/own-parts.md")  # Python out of examples/: test_extending.py
FOLDERS = dict.fromkeys(CODE_OF_EXAMPLES, "examples")  # where commands are typed, if not in the repository
WITH_RAY = ("docs/cluster.md", "docs/reproduction.md")
WITH_TIMM = ("docs/pretrained-bodies.md",)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def run_here() -> list[Any]:
    """The pages with something to run, those that start Ray in one group of tests."""
    found = [page for page in pages() if page not in ELSEWHERE and any(b.language in RUN for b in blocks(page))]
    ray = pytest.mark.xdist_group("ray")
    return [pytest.param(page, marks=ray) if page in WITH_RAY else page for page in found]


@pytest.fixture
def registries() -> Iterator[None]:
    """What pages and plugins register is forgotten afterwards: other tests list what there is."""
    every: tuple[Registry[Any], ...] = (methods, *AXES.values(), sources, partitions, bodies, measures, attacks)
    kept, modules = [(registry, dict(registry)) for registry in every], set(sys.modules)
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "examples")):
            del sys.modules[name]


@pytest.mark.parametrize("page", run_here())
@pytest.mark.usefixtures("registries")
def test_a_page_works_as_written(
    page: str,
    torso: Torso,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if page in WITH_RAY:
        request.getfixturevalue("cluster")
    if page in WITH_TIMM:
        library("timm")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path / FOLDERS.get(page, "."))
    names: dict[str, Any] = {}
    with mpl.rc_context({"backend": "agg"}):
        for block in blocks(page):
            if block.not_run or block.language not in RUN:
                continue
            if block.language == "console":
                for command in block.commands:
                    _call(torso, shlex.split(command, comments=True), block.where, tmp_path)
            elif page not in CODE_OF_EXAMPLES:
                exec(compile(block.text, block.where, "exec"), names)
                _compare(block, capsys.readouterr().out)


def _call(torso: Torso, words: list[str], where: str, folder: Path) -> None:
    """Runs a command of a page; those that set a machine up are only looked up."""
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words[1:]), where
    elif words[:2] == ["pip", "install"]:
        extras = re.findall(r"torso\[(.*?)\]", " ".join(words))
        assert extras, where
        assert {name for text in extras for name in text.split(",")} <= EXTRAS.keys(), where
    elif words[0] == "torso":
        said = torso(*_small(words[1:], folder))
        assert said.status == 0, f"{where}: {shlex.join(words)}\n{said.out}{said.err}"
    else:
        assert words == ["source", ".venv/bin/activate"], f"{where}: no test can run {words[0]!r}. Mark the block"


def _small(words: list[str], folder: Path) -> list[str]:
    """The command with few rounds and epochs, and a folder of its own where it names none.

    One that goes on with a run keeps the settings of the run."""
    if words[0] not in TRAINS or (words[0] == "run" and "--resume" in words):
        return words
    if words[0] == "compare" and Path(words[1]).is_dir():  # it compares finished runs
        return words
    out = [] if "--out" in words else ["--out", str(folder / "runs" / str(len(list(folder.glob("runs/*")))))]
    return [*words, *(f"--set={text}" for text in SMALL), *out]


def _compare(block: Block, printed: str) -> None:
    """Where every print of a block has a comment with what it prints, that is what it printed."""
    prints = re.findall(r"^print\(.*$", block.text, re.MULTILINE)
    said = re.findall(r"^print\(.*\)  # (.*)$", block.text, re.MULTILINE)
    if said and len(said) == len(prints):
        assert printed.splitlines() == said, block.where


def test_every_block_is_run_or_says_why_not() -> None:
    for page in pages():
        for block in blocks(page):
            assert block.language.split(" ")[0] in (*RUN, *SHOWN), f"{block.where}: ```{block.language}"
            hidden = block.language == "" and re.search(r"^(\$ )?torso ", block.text, re.MULTILINE)
            assert not hidden, f"{block.where}: a command belongs into a block of `console`, so that it is run"
            if block.not_run:
                assert block.language in RUN, f"{block.where}: nothing would run it"
                assert block.not_run.startswith(REASONS), f"{block.where}: {block.not_run}. Known reasons: {REASONS}"
            elif block.language == "console":
                assert block.commands or page in ELSEWHERE, f"{block.where}: no line begins with '$ '"


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not run {page}"
