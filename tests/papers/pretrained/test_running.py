"""Blocks are run in a given time, every cell leaves a file, and pages and claims are made from the files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torso.papers.experiments.deadline import Deadline
from torso.papers.pages import pretrained
from torso.papers.pretrained import records
from torso.papers.pretrained.__main__ import main
from torso.papers.pretrained.answers import own_answers
from torso.papers.pretrained.cells import Cell, Plan
from torso.papers.pretrained.definition import Evidence, load
from torso.papers.pretrained.running import Runs
from torso.papers.tables.claims import OWN, claims, judge

TINY = Path(__file__).with_name("tiny.toml")


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return load(TINY)


def runs_in(folder: Path, evidence: Evidence, seconds: float = 600.0, **how: Any) -> Runs:
    return Runs(Plan(evidence, folder / "work", **how), folder / "json", Deadline(seconds), say=lambda _: None)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, evidence: Evidence) -> Path:
    """All blocks, run once."""
    folder = tmp_path_factory.mktemp("evidence")
    assert runs_in(folder, evidence).go(evidence.blocks)
    return folder


def test_a_cell_has_a_file_with_all_that_it_takes_to_run_it_again(done: Path) -> None:
    found = records.read(done / "json")
    assert sorted(found) == sorted(
        [*(f"digits-a0.1-{name}" for name in ("fedncm", "fedncm-ft", "ft", "lp")), "digits-own-fedbabu"]
    )
    cell = found["digits-a0.1-fedncm-ft"]
    assert cell["config"]["model.weights"] == "trained here: half of the digits"
    assert list(cell["runs"]) == ["0", "1"]
    run = cell["runs"]["0"]
    assert [point[0] for point in run["history"]] == [2, 4]
    assert run["history"][-1] == [4, round(run["accuracy"]["generic"], 3), run["bytes_up"] + run["bytes_down"], 8352]
    assert run["versions"]["torch"]
    assert run["machine"]["device"]
    assert re.fullmatch(r"[0-9a-f]{64}", run["data"]["clients_sha256"])
    assert cell["runs"]["1"]["data"] != run["data"]  # another seed deals other samples


def test_a_history_counts_what_class_means_cost_before_the_first_round(done: Path) -> None:
    found = records.read(done / "json")
    means, tuned, plain = (found[f"digits-a0.1-{name}"]["runs"]["0"] for name in ("fedncm", "fedncm-ft", "ft"))
    for spent in (2, 3):  # bytes, forward passes
        assert [a[spent] - b[spent] for a, b in zip(tuned["history"], plain["history"], strict=True)] == [
            means["history"][-1][spent]
        ] * 2


def test_the_rate_that_is_best_on_validation_data_meets_the_test_data(done: Path) -> None:
    cell = records.read(done / "json")["digits-a0.1-lp"]
    scores = {one["point"]["train.lr"]: one["validation"]["generic"] for one in cell["tuning"]}
    assert sorted(scores) == [0.1, 0.3]
    assert cell["chosen"] == {"train.lr": max(scores, key=lambda rate: scores[rate])}
    assert {one["rounds"] for one in cell["tuning"]} == {2}  # half of the rounds
    assert cell["runs"]["0"]["history"][-1][0] == 4


def test_what_has_a_file_is_not_run_again_and_another_config_is(done: Path, evidence: Evidence, tmp_path: Path) -> None:
    said: list[str] = []
    for name, text in ((path.name, path.read_text("utf-8")) for path in (done / "json").iterdir()):
        (tmp_path / "json").mkdir(exist_ok=True)
        (tmp_path / "json" / name).write_text(text, encoding="utf-8")
    again = runs_in(tmp_path, evidence)
    again.say = said.append
    assert again.go(evidence.blocks)
    assert not said
    assert not (tmp_path / "work").exists()
    first = evidence.blocks[0].model_copy(update={"methods": ("fedncm",), "seeds": 1})
    other = runs_in(tmp_path, evidence, sets=("data.clients=4",))
    assert other.go([first])
    cell = records.read(tmp_path / "json")["digits-a0.1-fedncm"]
    assert (cell["config"]["data.clients"], list(cell["runs"])) == (4, ["0"])  # the seeds of the old config are gone


def test_when_time_is_up_finished_runs_stay_and_a_second_call_goes_on(evidence: Evidence, tmp_path: Path) -> None:
    block = evidence.blocks[0].model_copy(update={"methods": ("fedncm", "ft"), "seeds": 1})
    first = runs_in(tmp_path, evidence)
    stop = first.stop

    def until_class_means_are_there(text: str) -> None:
        if "fedncm-seed0: generic" in text:
            stop.seconds = 0.0

    first.say = until_class_means_are_there
    assert not first.go([block])
    assert list(records.read(tmp_path / "json")) == ["digits-a0.1-fedncm"]
    said: list[str] = []
    second = runs_in(tmp_path, evidence)
    second.say = said.append
    assert second.go([block])
    assert list(records.read(tmp_path / "json")) == ["digits-a0.1-fedncm", "digits-a0.1-ft"]
    assert not any("fedncm-seed0" in text for text in said)


def test_a_block_that_is_refused_does_not_stop_the_others(evidence: Evidence, tmp_path: Path) -> None:
    wrong = evidence.settings["digits-a0.1"].model_copy(update={"sets": ("data.source=nowhere",)})
    other = evidence.model_copy(update={"settings": {**evidence.settings, "wrong": wrong}})
    bad = evidence.blocks[0].model_copy(update={"name": "bad", "settings": ("wrong",)})
    good = evidence.blocks[0].model_copy(update={"methods": ("fedncm",), "seeds": 1})
    runs = runs_in(tmp_path, other)
    assert not runs.go([bad, good])
    assert list(runs.broken) == ["block bad"]
    assert "nowhere" in runs.broken["block bad"]
    assert list(records.read(tmp_path / "json")) == ["digits-a0.1-fedncm"]


def test_the_page_has_ours_beside_the_papers_and_draws_the_courses(done: Path, evidence: Evidence) -> None:
    cells = records.read(done / "json")
    page = pretrained.Page(cells, evidence)
    text = page.text()
    mean = sum(run["accuracy"]["generic"] for run in cells["digits-a0.1-ft"]["runs"].values()) / 2
    assert re.search(rf"\| FT \| {mean:.1f} ± [\d.]+ \(85\.4 / 77\.9\) \|", text)
    assert "| half of the digits | FedBABU |" in text
    assert list(page.pictures) == ["digits-a0.1"]
    assert page.pictures["digits-a0.1"].count(">accuracy in %<") == 3
    assert "pretrained/digits-a0.1.svg" in text


def test_without_files_the_page_says_that_nothing_was_run_and_claims_have_no_evidence() -> None:
    page = pretrained.Page({})
    assert "Nothing has been run yet." in page.text()
    assert not page.pictures
    assert own_answers({}) == []


def test_claims_are_judged_by_the_cells(done: Path, evidence: Evidence) -> None:
    answers = own_answers(records.read(done / "json"), evidence)
    (claim,) = [claim for claim in claims() if "cheaper in bytes" in claim.says]
    verdict = judge(claim, {OWN: answers})
    assert (verdict.ours.held, verdict.ours.there, verdict.word) == (2, 2, "holds (another body)")
    (claim,) = [claim for claim in claims() if "most accurate" in claim.says]
    assert judge(claim, {OWN: answers}).ours.there == 3  # FT, LP and FedNCM


def test_a_seed_that_diverged_loses_its_pairs(done: Path, evidence: Evidence) -> None:
    cells = records.read(done / "json")
    cells["digits-a0.1-ft"]["runs"]["1"]["status"] = "failed: non-finite loss in round 1, client 3"
    (claim,) = [claim for claim in claims() if "optimiser" in claim.says]
    verdict = judge(claim, {OWN: own_answers(cells, evidence)})
    assert (verdict.ours.held, verdict.ours.walkovers) == (1, 1)
    assert "✗ 1 of 2 diverged" in pretrained.Page(cells, evidence).text()


def test_the_command_packs_its_files_and_estimates(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--plan", str(TINY), "--folder", str(done / "json"), "--work", str(tmp_path)]
    assert main([*common, "--estimate", "1000"]) == 0
    assert "first: 12 runs" in capsys.readouterr().out
    assert main([*common, "--pack", str(tmp_path / "all.tgz"), "--processes", "1"]) == 0
    assert (tmp_path / "all.tgz").stat().st_size > 0
    assert "all is done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text.replace('methods = ["fedbabu"]', 'methods = ["fedbab"]'), "fedbab' is unknown"),
        (lambda text: text.replace("looks = 2", "look = 2"), "look"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(
    change: Callable[[str], str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(change(TINY.read_text("utf-8")), encoding="utf-8")
    assert main(["--plan", str(plan)]) == 2
    assert named in capsys.readouterr().err


def test_the_plan_that_ships_is_valid_and_begins_with_what_is_worth_most() -> None:
    evidence = load()
    assert [block.name for block in evidence.blocks][:2] == ["cifar10", "cifar100"]
    plan = Plan(evidence, Path("work"), ("model.body=conv4",))
    cell = Cell("cifar10-a0.1", "fedncm-ft")
    tuning, final = plan.tuning(cell), plan.final(cell, {"train.lr": 0.03}, 2)
    assert [trial.config.data.validation for trial in tuning] == [0.1] * len(tuning)
    assert (final.config.data.validation, final.config.data.partition, final.config.train.fraction) == (
        *(0.0, "dirichlet-client"),
        0.3,
    )
    assert json.loads(json.dumps(final.changes)) == final.changes
