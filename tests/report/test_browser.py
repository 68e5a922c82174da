"""The page and the watcher in a real browser, made from real small runs: what a reader sees, does and takes away.

With TORSO_PICTURES=docs the pictures that docs/ shows are written there, of longer runs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from PIL import Image

from torso.parallel.compare import compare
from torso.report.watch import serve
from torso.report.write import report

from .browser import PROGRAM, Browser, browser
from .samples import write_run

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium (Debian)"),
    pytest.mark.xdist_group("browser"),  # the runs are made once
]

METHODS = ("fedavg", "fedprox", "fedbabu", "fedrep")
SETS = (
    *("data.clients=20", "data.shards=3", "train.batch_size=10", "measure.every=2", "personalize.lr=0.01"),
    "measure.names=initial,personalized,without_head,generic,generic_as_personal,personal,local_only",
    "measure.analyses=four_factors,norms,layer_similarity,class_curves,drift_variance,regularization,cross_client,tsne",
)
SHORT = (
    *("data.source=synthetic", "data.synthetic.size=8", "data.synthetic.samples=200", "data.synthetic.test_samples=50"),
    *("data.clients=10", "data.shards=2", "train.rounds=4", "train.local_epochs=1"),
    *("measure.analyses_every=2", "personalize.sweep=[0, 1]", "personalize.epochs=2"),
)
FOR_DOCS = (
    *("train.rounds=12", "train.local_epochs=2", "measure.analyses_every=4", "personalize.sweep=[0, 1, 2, 3, 5]"),
    "run.workers=1",
)
COLOUR = "getComputedStyle(document.documentElement).backgroundColor"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs of four methods and two seeds, with everything that can be measured."""
    folder = tmp_path_factory.mktemp("runs")
    length = FOR_DOCS if os.environ.get("TORSO_PICTURES") else SHORT
    compare(METHODS, None, [*SETS, *length], seeds=2, out=folder / "mine")
    return folder / "mine"


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    out = runs.parent / "page.html"
    report([runs], out, command="torso report runs/mine")
    return out


@pytest.fixture
def view(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as opened:
        opened.size(1280, 900)
        yield opened


def keep(view: Browser, tmp_path: Path, name: str) -> None:
    """A picture, and the one in docs/ where it is asked for: few colours, a small file."""
    path = tmp_path / name
    view.picture(path)
    image = Image.open(path).convert("RGB")
    assert len(image.getcolors(1 << 24) or ()) > 50  # something was drawn
    if folder := os.environ.get("TORSO_PICTURES"):
        image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
            Path(folder) / name, optimize=True
        )


def quiet(view: Browser) -> None:
    """No error, no warning, and nothing asked of anybody but the page itself."""
    assert view.errors == []
    assert [url for url in view.requests if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1"))] == []


def test_every_chart_draws_and_nothing_is_fetched(view: Browser, page: Path, tmp_path: Path) -> None:
    view.open(page.as_uri())
    view.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    drawn = view.run(
        """[...document.querySelectorAll('figure')].map((figure) => {
            const svg = figure.querySelector('svg'), box = svg.getBoundingClientRect();
            const seen = (mark) => mark.getBBox().width + mark.getBBox().height > 0;
            const marks = [...svg.querySelectorAll('path,circle')].filter(seen);
            return [figure.dataset.kind, box.width, box.height, marks.length + svg.querySelectorAll('text').length];
        })"""
    )
    kinds = {kind for kind, *_ in drawn}
    expected = {
        "difference",
        "rounds",
        "bands",
        "loss",
        "clients",
        "gains",
        "alone",
        "megabytes",
        "compute",
        "speed",
        "partition",
    }
    analyses = {"four-factors", "norms", "curves", "cross-client", "layers", "tsne", "drift", "regularization"}
    assert kinds == expected | analyses
    assert all(width > 200 and height > 60 and marks > 5 for _, width, height, marks in drawn), drawn
    assert "NaN" not in view.run("document.querySelector('main').innerHTML")
    quiet(view)
    assert view.requests == [page.as_uri()] or all(url.startswith(("file:", "data:")) for url in view.requests)


def test_tables_sort_by_click_and_by_key(view: Browser, page: Path) -> None:
    view.open(page.as_uri())
    order = "[...document.querySelectorAll('#methods tbody tr')].map((row) => row.cells[2].dataset.value * 1)"
    head = "document.querySelectorAll('#methods thead th')[2]"
    view.run(f"{head}.querySelector('button').click()")
    values = view.run(order)
    assert values == sorted(values, reverse=True)
    assert view.run(f"{head}.getAttribute('aria-sort')") == "descending"
    view.run(f"{head}.querySelector('button').focus()")
    view.press("Enter", 13)
    assert view.run(order) == sorted(values)
    assert view.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    quiet(view)


def test_another_baseline_changes_every_difference(view: Browser, page: Path) -> None:
    view.open(page.as_uri())
    cell = "document.querySelector('tr[data-place=\"{}\"] [data-measure=personalized]').textContent"
    names = view.run("[...document.querySelectorAll('#baseline option')].map((o) => [o.value, o.textContent])")
    first, other = names[0][0], names[1][0]
    assert view.run(cell.format(first)) == "baseline"
    before = view.run(cell.format(other))
    view.run(
        f"const s = document.getElementById('baseline'); s.value = '{other}'; s.dispatchEvent(new Event('change'))"
    )
    assert view.run(cell.format(other)) == "baseline"
    after = view.run(cell.format(first))
    assert after.split(" ")[0].translate(str.maketrans("+−", "−+")) == before.split(" ")[0]
    quiet(view)


def test_the_theme_follows_the_system_until_it_is_switched(view: Browser, page: Path) -> None:
    view.open(page.as_uri())
    light = view.run(COLOUR)
    view.size(1280, 900, dark=True)
    dark = view.run(COLOUR)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    view.run("document.getElementById('theme').click()")
    assert view.run(COLOUR) == light
    view.open(page.as_uri())
    assert view.run(COLOUR) == light  # kept
    quiet(view)


def test_charts_and_data_can_be_taken_away_and_commands_copied(view: Browser, page: Path) -> None:
    view.open(page.as_uri())
    view.run(
        """globalThis.taken = []; HTMLAnchorElement.prototype.click = function () {
            fetchBlob.get(this.href).text().then((text) => taken.push([this.download, text])); };
        globalThis.fetchBlob = new Map(); const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { const url = make(blob); fetchBlob.set(url, blob); return url; }; 0"""
    )
    view.run("document.querySelectorAll('figure[data-kind=rounds] .files button').forEach((b) => b.click())")
    view.run("document.querySelector('[data-save-table]').click()")
    view.until("taken.length === 3")
    taken = dict(view.run("taken"))
    assert taken["rounds.csv"].startswith("method,round,mean,band_low,band_high\nfedavg,2,")
    assert taken["rounds.svg"].startswith("<?xml")
    assert "class=" not in taken["rounds.svg"]
    assert "rgb(" in taken["rounds.svg"]
    assert taken["comparison.csv"].startswith("method,initial,personalised")
    view.run("document.querySelector('#runs details').open = true")
    view.run("document.querySelector('#runs [data-copy]').click()")
    view.until("document.querySelector('#runs [data-copy]').textContent === 'Copied'")
    quiet(view)


def test_a_phone_scrolls_down_and_not_sideways(view: Browser, page: Path, tmp_path: Path) -> None:
    view.size(390, 844, 2)
    view.open(page.as_uri())
    assert view.run("document.documentElement.scrollWidth") <= 390
    texts = "[...document.querySelectorAll('figure[data-kind=rounds] text')]"
    smallest = view.run(f"Math.min(...{texts}.map((text) => text.getBoundingClientRect().height))")
    assert smallest >= 9  # pixels of a line of text
    keep(view, tmp_path, "report-phone.png")
    quiet(view)


def test_everything_is_reached_with_the_keyboard(view: Browser, page: Path) -> None:
    view.open(page.as_uri())
    reached = []
    for _ in range(14):
        view.press("Tab", 9)
        reached.append(view.run("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)"))
    for wanted in ("Skip to the summary", "theme", "Comparison", "baseline", "method"):
        assert wanted in reached, reached


def test_pictures(view: Browser, page: Path, tmp_path: Path) -> None:
    for name, dark in (("report-light.png", False), ("report-dark.png", True)):
        view.size(1200, 1000, dark=dark)
        view.open(page.as_uri())
        keep(view, tmp_path, name)
    view.size(1200, 820)
    for name, section in (("report-clients.png", "clients"), ("report-rounds.png", "rounds")):
        view.run("document.documentElement.style.scrollBehavior = 'auto'")
        view.run(f"document.getElementById('{section}').scrollIntoView()")
        keep(view, tmp_path, name)
    quiet(view)


def test_pictures_of_the_watcher(view: Browser, runs: Path, tmp_path: Path) -> None:
    """Three finished runs and one in its middle."""
    for name in ("fedavg-seed0", "fedbabu-seed0", "fedprox-seed0", "fedrep-seed0"):
        shutil.copytree(runs / name, tmp_path / "runs" / name, ignore=shutil.ignore_patterns("checkpoints"))
    going = tmp_path / "runs" / "fedrep-seed0"
    (going / "result.json").unlink()
    lines = (going / "history.jsonl").read_text().splitlines(keepends=True)
    (going / "history.jsonl").write_text("".join(lines[: len(lines) * 2 // 3]))
    with serve(tmp_path / "runs", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        view.size(1200, 900)
        view.open(f"http://127.0.0.1:{server.server_address[1]}/")
        view.until("document.getElementById('log').textContent.includes('round')")
        keep(view, tmp_path, "watch.png")
        quiet(view)
        server.shutdown()


def test_a_run_called_script_stays_text(view: Browser, tmp_path: Path) -> None:
    name = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
    folder = write_run(tmp_path / "runs" / "<img src=x onerror=alert(2)>")
    for file in ("result.json", "config.toml"):
        path = folder / file
        path.write_text(path.read_text().replace('"fedavg"', json.dumps(name), 1))
    report([tmp_path / "runs"], tmp_path / "page.html")
    view.open((tmp_path / "page.html").as_uri())
    assert name in view.run("document.title")
    assert name in view.run("document.querySelector('h1').textContent")
    assert view.run("document.images.length") == 0
    assert view.run("document.scripts.length") == 2
    quiet(view)


def test_the_watcher_follows_a_run(view: Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "<b>going", rounds=10)
    (folder / "result.json").unlink()
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:3]))
    with serve(tmp_path / "runs", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        view.open(f"http://127.0.0.1:{server.server_address[1]}/")
        view.until("document.querySelector('#runs li')?.textContent.includes('3 / 10')")
        assert view.run("document.querySelector('#runs button').textContent") == "<b>going"
        assert "4 s left" in view.run("document.querySelector('#runs li').textContent")
        view.until("document.getElementById('log').textContent.includes('round 3')")
        assert view.run("document.querySelectorAll('#charts svg').length") == 2
        with (folder / "history.jsonl").open("a") as file:
            file.write(lines[3])
        view.until("document.querySelector('#runs li').textContent.includes('4 / 10')")
        quiet(view)
        server.shutdown()
