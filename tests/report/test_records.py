"""Run folders with parts missing, cut short or strange: a mark beside the numbers, never a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from torso.errors import RequestError
from torso.report.comparison import compare_folders
from torso.report.page import build_page
from torso.report.records import Scores, find, read

from .samples import write_run


def test_a_whole_run_is_read_without_complaint(tmp_path: Path) -> None:
    run = read(write_run(tmp_path / "a", accuracy={"personalized": [70.0, None, 90.0]}))
    assert (run.method, run.seed, run.status, run.problems) == ("fedavg", 0, "ok", ())
    scores = run.accuracy["personalized"]
    assert (scores.mean, scores.std, scores.n) == (80, 10, 2)
    assert math.isnan(scores.clients[1])
    assert run.megabytes == 4  # 2 MB up, 2 MB down
    assert run.setting("train.rounds") == 4


def test_bands_are_the_middle_half_or_else_one_std() -> None:
    with_quantiles = Scores.parse({"mean": 50, "std": 40, "n": 9, "quantiles": [1, 25, 50, 75, 99]})
    without = Scores.parse({"mean": 90, "std": 30, "n": 9})
    assert with_quantiles is not None
    assert without is not None
    assert with_quantiles.band == (25, 75)
    assert without.band == (60, 100)  # there is nothing above 100%


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("history.jsonl", None, "there is no history"),
        ("history.jsonl", "", "there is no history"),
        ("history.jsonl", '{"round": 1, "loss": 1}\n{"round": 2, "lo', "history.jsonl is broken after round 1"),
        ("history.jsonl", '{"round": 1, "loss": 1}\n', "history.jsonl ends at round 1 of 4"),
        ("history.jsonl", "[1]\n", "history.jsonl is broken after round 0"),
        (
            "history.jsonl",
            '{"round": 4, "accuracy": {"initial": {"mean": 320, "n": 2}}}\n',
            "accuracies that are not percentages",
        ),
        ("config.toml", None, "there is no config.toml"),
        ("config.toml", "[[[", "config.toml cannot be read"),
        ("result.json", None, "unfinished"),
        ("result.json", "{", "result.json cannot be read"),
        ("result.json", "[]", "result.json is not a JSON object"),
        ("analyses.json", '{"tsne": ', "analyses.json cannot be read"),
    ],
)
def test_what_is_missing_or_broken_is_said_on_the_page(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    folder = write_run(tmp_path / "a")
    (folder / name).unlink(missing_ok=True) if content is None else (folder / name).write_text(content)
    assert any(said in problem for problem in read(folder).problems)
    page = build_page(compare_folders([folder, write_run(tmp_path / "good", "fedbabu")]))
    assert said in page
    assert "fedbabu" in page


def test_a_measure_of_nobody_is_named_and_left_out(tmp_path: Path) -> None:
    """Zero clients with OOD samples: no number, and a sentence."""
    folder = write_run(tmp_path / "a", accuracy={"initial": [50.0, 60.0], "ood_after": [None, None]})
    run = read(folder)
    assert set(run.accuracy) == {"initial"}
    assert run.problems == ("ood_after: no client has samples to measure it on",)
    assert "ood_after: no client has samples to measure it on" in build_page(compare_folders([folder]))


def test_strange_numbers_are_not_taken(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    tree = json.loads((folder / "result.json").read_text())
    tree["accuracy"] = {"initial": {"mean": "high"}, "personalized": 3, "generic": {"mean": 50.0, "n": 1}}
    tree["cost"], tree["seconds"] = "much", None
    (folder / "result.json").write_text(json.dumps(tree))
    run = read(folder)
    assert set(run.accuracy) == {"generic"}
    assert len(run.problems) == 2
    assert run.megabytes is None
    assert "generic" in build_page(compare_folders([folder]))


def test_folders_are_found_below_and_each_once(tmp_path: Path) -> None:
    for name in ("one", "cmp/a", "cmp/b"):
        write_run(tmp_path / name)
    found = find([tmp_path, tmp_path / "one", tmp_path / "cmp"])
    assert [str(p.relative_to(tmp_path)) for p in found] == ["cmp/a", "cmp/b", "one"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, said in (
        ("empty", "is not a run folder and contains none"),
        ("file", "is a file"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(RequestError, match=said):
            find([tmp_path / name])
