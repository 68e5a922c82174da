"""Published rows: what stands beside a user's own rows, and how a board goes on from them."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conftest import Torso

from torso.config import assign_all
from torso.methods import methods
from torso.papers.board import definition, published
from torso.papers.board.contestants import Contestant
from torso.papers.board.definition import Axis, SeparateSetting, load
from torso.papers.board.leaderboard import run_leaderboard
from torso.papers.board.published import beside, origins, worth_showing
from torso.papers.board.rows import Row
from torso.papers.board.runs import BoardRuns
from torso.papers.board.standings import in_setting
from torso.papers.board.trials import BoardMethod, BoardPlan

from ..heard import Heard
from ..rows import DIR, S2, row
from ..tiny import QUICK, tiny_cifar10
from .test_leaderboard import OWN, SETS


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tiny_cifar10(tmp_path / "data")


def test_what_ships_is_a_row_a_line_and_reads_back(tmp_path: Path) -> None:
    there = published.read()
    assert {one["setting"] for one in there["board"]} >= set(load().settings)
    published.write(tmp_path / "p.json", there["board"], there["search"], there["tuned"])
    assert (tmp_path / "p.json").read_text("utf-8") == published.FILE.read_text("utf-8")
    assert published.read(tmp_path / "none.json") == {"board": [], "search": {}, "tuned": []}


def test_rows_that_were_not_judged_leave_their_tuning_runs() -> None:
    """One of two seeds is too few to replace a row, a method that diverged at a seed stays as such, and tuning runs
    are dropped as soon as their row is judged."""
    tried = {"tuned_with": {"run.precision": "bf16"}, "tried": [{"train.lr": 0.1, "validation": None}]}
    old, few, judged = row("a", 80.0, 81.0), row("a", 50.0) | tried, row("a", 90.0, 91.0)
    failed = row("b", 60.0, status="failed: diverged")
    there = {"board": [old, row("b", 70.0, 71.0)], "search": {}, "tuned": []}
    found = published.merged(there, [few, failed, row("c", status="not run")])
    assert found["board"] == [old, failed]
    assert found["tuned"] == [{"setting": S2, "method": "a", **tried}]
    now = published.merged(found, [judged | tried])
    assert now == {"board": [judged | {"tried": tried["tried"]}, failed], "search": {}, "tuned": []}


def test_published_rows_stand_beside_those_of_the_same_settings() -> None:
    own = [row("mine", 90.0), row("fedper", 70.0)]
    there = [row("fedper", 60.0), row("a", 80.0), row("b", 50.0, status="failed"), row("c", 50.0, setting=DIR)]
    (found,) = beside(own, there)
    assert (found["method"], found["published"]) == ("a", True)
    assert origins([*own, found]) == "a device (bf16), torch 2.13, cifar10_jpeg.npz"
    assert origins(own) == ""


def test_of_many_published_rows_the_first_five_fedavg_and_the_nearest_are_shown() -> None:
    names = [f"m{place}" for place in range(1, 21)]
    there = [row(name, 100.0 - place) for place, name in enumerate(names, 1)]
    there[17]["method"] = "fedavg"
    rows = in_setting([row("mine", 89.5), *beside([row("mine", 89.5)], there)], S2)  # between the tenth and eleventh
    assert [one["method"] for one in worth_showing(rows)] == [*names[:5], "m10", "mine", "m11", "fedavg"]


def _row(
    folder: Path,
    data: Path,
    rates: tuple[float, ...],
    before: Sequence[Row] = (),
    seeds: int = 1,
    tuned: Sequence[Row] = (),
) -> tuple[Row, list[str]]:
    """The row of FedRep with these rates, and the names of the runs that were done for it."""
    board = load().model_copy(update={"grid": (Axis(key="train.lr", short="lr", values=rates),)})
    plan = BoardPlan(board, SETS, {"cifar10": str(data)})
    heard = Heard()
    one = Contestant(plan, S2, BoardMethod("fedrod-linear", ("method.name=fedrod-linear",)))
    (found,) = run_leaderboard([one], BoardRuns(folder, heard), seeds, published=before, tuned=tuned)
    return found, [name for name, _ in heard.begun]


def test_a_board_goes_on_from_published_rows(tmp_path: Path, data: Path) -> None:
    first, begun = _row(tmp_path / "first", data, (0.03, 0.1), [])
    assert len(begun) == 3
    same, begun = _row(tmp_path / "same", data, (0.03, 0.1), [first])
    assert (same, begun) == (first, [])
    wider, begun = _row(tmp_path / "wider", data, (1e-9, 0.03, 0.1), [first])
    assert [name.rpartition("-lr")[2] for name in begun] == ["1e-09-validation"]  # it learns nothing, so is not chosen
    assert wider["chosen"] == first["chosen"]
    assert wider["personal"] == first["personal"]
    assert len(wider["tried"]) == 3
    alone, _ = _row(tmp_path / "alone", data, (1e-9, 0.03, 0.1), [])
    assert {**wider, "config": alone["config"]} == alone
    more, begun = _row(tmp_path / "more", data, (0.03, 0.1), [first], seeds=2)
    assert [name.rpartition("-")[2] for name in begun] == ["seed0", "seed1"]
    assert more["personal"]["seeds"]["0"] == first["personal"]["seeds"]["0"]


def test_a_board_goes_on_from_published_tuning_runs(tmp_path: Path, data: Path) -> None:
    whole, _ = _row(tmp_path / "whole", data, (0.03, 0.1))
    half = {**whole, "tried": whole["tried"][:1]}
    row, begun = _row(tmp_path / "row", data, (0.03, 0.1), tuned=[half])
    assert [name.rpartition("-lr")[2] for name in begun][:1] == ["0.1-validation"]
    assert (row, len(begun)) == (whole, 2)
    other = {**half, "tuned_with": {**half["tuned_with"], "train.rounds": 9}}
    _, begun = _row(tmp_path / "other", data, (0.03, 0.1), tuned=[other])
    assert len(begun) == 3


@pytest.mark.parametrize("change", [{"status": "failed: diverged"}, {"config": {"method.name": "fedrod-linear"}}])
def test_rows_of_another_config_and_broken_ones_are_not_gone_on_from(
    tmp_path: Path, data: Path, change: dict[str, object]
) -> None:
    first, begun = _row(tmp_path / "first", data, (0.03,), [])
    _, again = _row(tmp_path / "again", data, (0.03,), [{**first, **change}])
    assert again == begun


def test_the_command_shows_published_rows_beside_a_method_of_ones_own(
    torso: Torso, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = assign_all(copy.deepcopy(load().config), ["data.new_clients=2", "data.min_size=1", *QUICK])
    small = {"grid": (Axis(key="train.lr", short="lr", values=(0.1,)),), "config": config}
    board = load().model_copy(update=small)
    monkeypatch.setattr(definition, "load", lambda: board)
    published.write(tmp_path / "p.json", [row("fedavg", 80.0), row("fedper", 10.0)], {})
    monkeypatch.setattr(published.read, "__defaults__", (tmp_path / "p.json",))
    Path("contender.py").write_text(OWN)
    part = f"setting={S2},method=mine"
    words = ("leaderboard", "--plugin", "contender", "--only", part, "--seeds", "1", "--data-root", str(data))
    try:
        said = torso(*words, "--out", "out")
        changed = torso(*words, "--out", "other", sets=("train.rounds=1",))
    finally:
        methods.pop("mine", None)
        sys.modules.pop("contender", None)
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert [name for line in lines for name in ("fedavg°", "mine ", "fedper°") if name in line][:3] == [
        *("fedavg°", "mine ", "fedper°")
    ]
    assert "° published with Torso, of a device (bf16), torch 2.13" in said.out
    assert "fedavg" not in changed.out  # other rounds: nothing to compare with


def test_a_command_keeps_the_rows_of_other_separate_settings(
    torso: Torso, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = assign_all(copy.deepcopy(load().config), ["data.new_clients=2", "data.min_size=1", *QUICK])
    apart = {name: SeparateSetting(sets=load().settings[S2], why="small") for name in ("one", "other")}
    small = {"grid": (Axis(key="train.lr", short="lr", values=(0.1,)),), "config": config, "later": apart}
    board = load().model_copy(update=small)
    monkeypatch.setattr(definition, "load", lambda: board)
    for setting in apart:
        part = f"setting={setting},method=fedavg"
        said = torso("leaderboard", "--only", part, "--seeds", "1", "--data-root", str(data), "--out", "out")
        assert said.status == 0, said.err
    rows = json.loads(Path("out/leaderboard/board.json").read_text("utf-8"))
    assert {one["setting"] for one in rows} == set(apart)
