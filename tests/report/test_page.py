"""The page as text: complete, closed, escaped, small and quick. What it does in a browser: test_browser.py."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from torso.report.charts import KINDS
from torso.report.comparison import compare_folders
from torso.report.page import build_page, json_in_html
from torso.report.write import as_data, report

from .samples import all_analyses, write_run

KINDS_IN_ORDER = (
    *(
        "difference",
        "rounds",
        "bands",
        "loss",
        "epsilon",
        "heard",
        "staleness",
        "clients",
        "gains",
        "alone",
        "megabytes",
        "hours",
        "compute",
        "speed",
        "partition",
    ),
    *("four-factors", "norms", "curves", "drift", "regularization", "cross-client", "layers", "tsne"),
)
NASTY = "<script>alert(1)</script>&\"'"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_page_says_everything_and_fetches_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a", analyses=all_analyses())
    write_run(tmp_path / "b", "fedbabu", accuracy={"initial": [60.0, 61.0], "personalized": [80.0, 99.0]})
    page = build_page(compare_folders([tmp_path]), "torso report x")
    for said in (
        "80.0",
        "± 10.0",
        "+9.5",
        "torso run --set method.name=fedbabu",
        "rounds = 4",
        "python 3.11",
        "torso report x",
    ):
        assert said in page, said
    for tag, attributes in Tags(page).found:
        assert tag not in ("link", "img", "iframe") or str(attributes.get("href", "")).startswith("data:")
        for name in ("src", "href", "action", "srcset"):
            target = attributes.get(name) or ""
            assert target.startswith(("#", "data:")) or not target, (tag, target)
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_names_and_paths_stay_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<script>alert(2)<", status="ok")
    for name in ("result.json", "config.toml"):
        path = folder / name
        quoted = json.dumps(NASTY)
        path.write_text(path.read_text().replace('"fedavg"', quoted, 1))
    (folder / "result.json").write_text(
        json.dumps({**json.loads((folder / "result.json").read_text()), "status": f"failed: {NASTY}"})
    )
    page = build_page(compare_folders([folder, write_run(tmp_path / "b", "fedbabu")]), f"torso report {NASTY}")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    scripts = [attributes for tag, attributes in Tags(page).found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "page-data"}, {}]


def test_data_cannot_leave_their_element() -> None:
    text = json_in_html({"a": "</script><!--<b>&"})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {"a": "</script><!--<b>&"}


def test_other_data_are_shown_side_by_side_and_not_tested(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "fedbabu", sets=["data.shards=4"])
    page = build_page(compare_folders([tmp_path]))
    assert "did not have the same clients" in page
    assert "not tested" in page
    assert 'data-kind="difference"' not in page


def test_a_failed_run_among_good_ones_is_shown_as_failed(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "fedbabu", status="failed: non-finite loss in round 1, client 2")
    page = build_page(compare_folders([tmp_path]))
    assert "1 of 1 failed" in page
    assert page.count("failed: non-finite loss in round 1, client 2") >= 2


def test_ten_runs_of_a_hundred_clients_and_classes_are_small_and_quick(tmp_path: Path) -> None:
    """Under 3 MB and 10 s of two cores: ten methods, 100 clients, 100 rounds, 100 classes, every analysis, noise."""
    random = np.random.default_rng(0)
    methods = ("fedavg", "fedbabu", "fedper", "fedrep", "fedprox", "fedfn", "scaffold", "feddyn", "fedadam", "fedexp")
    for method in methods:
        found = {
            name: (random.integers(50, 101, 100) * 1.0).tolist() for name in ("initial", "personalized", "local_only")
        }
        made = all_analyses(100, 100)
        for key in ("weight_similarity", "inter_class"):
            made["four_factors"][key] = random.uniform(-1, 1, (100, 100)).tolist()
        made["cross_client"]["accuracy"] = random.uniform(0, 100, (100, 100)).tolist()
        made["tsne"] = {name: random.uniform(-50, 50, 1000).round().tolist() for name in ("x", "y", "label")}
        write_run(tmp_path / method, method, accuracy=found, rounds=100, analyses=made)
    report([tmp_path], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 3e6


def test_every_kind_of_chart_is_in_the_documentation() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8").split())
    assert f"Kinds: {', '.join(KINDS_IN_ORDER)}." in text
    assert set(KINDS_IN_ORDER) == set(KINDS)


def test_the_same_as_data(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy={"personalized": [70.0, 80.0, 90.0]})
    write_run(tmp_path / "b", "fedbabu", accuracy={"personalized": [80.0, 90.0, 100.0], "generic": [60.0]})
    data = as_data(compare_folders([tmp_path]))
    assert data["baseline"] == "fedavg"
    found = {row["method"]: row for row in data["methods"]}
    assert found["fedbabu"]["accuracy"]["personalized"]["difference"] == {
        **{"mean": 10, "low": 10, "high": 10, "pairs": 3, "over": "clients"}
    }
    assert found["fedbabu"]["accuracy"]["generic"]["difference"] == {"refused": "not measured"}
    assert json.dumps(data)


@pytest.mark.parametrize("place", ["initial", "personalized"])
def test_every_chart_has_words_files_and_a_label(tmp_path: Path, place: str) -> None:
    write_run(tmp_path / "a", accuracy={place: [50.0, 60.0]})
    page = build_page(compare_folders([tmp_path]))
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert figures
    for figure in figures:
        for part in ("<h3>", 'role="img"', "aria-label=", 'data-save="svg"', 'data-save="csv"'):
            assert part in figure
