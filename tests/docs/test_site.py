"""The documentation builds as a site: strictly, with links that work, and without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.docs.blocks import ROOT
from tests.report.browser import PROGRAM, browser

import torso

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytestmark = pytest.mark.xdist_group("site")  # it is built once
LINKS = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in a process of its own: a broken link or a page without a place in the navigation ends it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not LOADED.search(text), f"{page.relative_to(site)}: {LOADED.search(text)}"


def test_the_reference_has_every_public_name_and_every_command(site: Path) -> None:
    names = (site / "api.html").read_text(encoding="utf-8")
    for name in torso.__all__:
        assert f'id="torso.{name}"' in names, name
    commands = (site / "commands.html").read_text(encoding="utf-8")
    for command in ("torso run", "torso methods show", "torso federation join"):
        assert f'id="{command.replace(" ", "-")}"' in commands, command


def test_files_outside_docs_have_pages(site: Path) -> None:
    """docs/engine.md links to ../bench/README.md, which lies below repository/ on the site, and links back."""
    assert 'href="repository/bench/index.html"' in (site / "engine.html").read_text(encoding="utf-8")
    bench = (site / "repository" / "bench" / "index.html").read_text(encoding="utf-8")
    assert 'href="../../scale.html"' in bench
    assert (site / "repository" / "bench" / "engine.json").is_file()
    assert "class FedALA" in re.sub(r"<[^>]*>", "", (site / "repository/examples/fedala.py.html").read_text("utf-8"))


def test_the_search_knows_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "start.html" in index
    assert "notebooks/tour.html" in index


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium (Debian)")
def test_a_reader_finds_a_page_by_searching(site: Path, tmp_path: Path) -> None:
    """In a browser, from a server on this machine; nothing is asked of any other."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with browser(tmp_path / "profile") as view:
            view.open(f"http://127.0.0.1:{server.server_port}/index.html?q=newcomer")
            view.until("document.querySelectorAll('.md-search-result__link').length > 0", seconds=60)
            assert any("notebooks/tour.html" in link for link in view.run(LINKS))
            assert view.requests
            assert all(url.startswith((f"http://127.0.0.1:{server.server_port}/", "data:")) for url in view.requests)
            assert not view.errors
    finally:
        server.shutdown()
        server.server_close()


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120


def test_the_claims_of_the_readme_are_those_of_the_page() -> None:
    """`28 of the 32 tested hold`, `27 of these on one seed or few pairs`, and so on, counted from the verdicts."""
    page = (ROOT / "docs" / "reproduction" / "claims.md").read_text(encoding="utf-8")
    verdicts = Counter(re.findall(r"^\| .*? \| \*\*(.*?)\*\* \|", page, re.MULTILINE))
    tested = sum(verdicts.values()) - verdicts["no evidence yet"]
    hold = sum(n for word, n in verdicts.items() if re.match(r"holds(?! in part)", word))
    other = verdicts["holds (another body)"]
    few, readme = hold - verdicts["holds"] - other, (ROOT / "README.md").read_text(encoding="utf-8")
    said = f"{hold} of the {tested} tested hold | {few} of these on one seed or few pairs, {other} with another body"
    assert said in readme
