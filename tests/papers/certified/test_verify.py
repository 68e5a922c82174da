"""`torso reproduce --verify`: cells of tables and small ones, run again and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Torso

from torso.papers.certified.cells import cells
from torso.papers.certified.ledger import Ledger, here, run_cells
from torso.papers.certified.verify import numbers_of, spread, verify
from torso.papers.experiments.datasets import find_all
from torso.papers.tables import collect
from torso.papers.tables.plan import plan
from torso.papers.tables.published import recipe
from torso.papers.tables.reproduce import reproduce

from ..tiny import QUICK, tiny_cifar10

ONLY = "shards=2,fraction=0.1,local_epochs=10,method=fedavg,variant=none"


def test_the_spread_by_hand() -> None:
    """70, 72, 74 have standard deviation 2: four points. One seed, or seeds close together: two points."""
    assert spread([70.0, 72.0, 74.0]) == pytest.approx(4.0)
    assert spread([70.0]) == spread([70.0, 70.5]) == 2.0


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of one line of fedbabu/13 with two seeds, made here, and a plan that is as quick."""
    (tmp_path / "data").mkdir()
    data = find_all(["cifar10"], tiny_cifar10(tmp_path / "data"))
    made = plan(recipe("fedbabu/13"), ONLY, 2, QUICK, data)
    monkeypatch.setattr(collect, "whole_table", lambda name: plan(recipe(name), "", 1, QUICK))
    collect._configs.cache_clear()
    table = reproduce(made, tmp_path / "out", whole=plan(recipe("fedbabu/13"), "", 2, QUICK, data))
    (tmp_path / "docs").mkdir()
    told = json.loads((table.folder / "table.json").read_text())
    (tmp_path / "docs" / "fedbabu-13.json").write_text(json.dumps(told))
    return tmp_path


def _verified(tables: Path, **how: Any) -> Any:
    usual = {"root": tables / "data", "device": "cpu", "minutes": 60.0, "draw": 1}
    return verify(tables / "docs", 6, **{**usual, **how})


def test_a_number_of_a_table_has_its_provenance_and_the_same_bits_again(tables: Path) -> None:
    numbers = list(numbers_of(tables / "docs"))
    assert [number.seed for number in numbers] == [0, 1] * 3  # one run: QUICK has the same epochs in three lines
    answer = numbers[0].answer
    assert answer["machine"]["path"] == here()["path"]
    assert {len(sums[of]) for sums in answer["sha256"].values() for of in ("data", "model")} == {64}
    found = _verified(tables)
    assert [(one.how, one.wrong) for one in found.outcomes] == [("same bits", "")] * 6
    assert found.ok

    path = tables / "docs" / "fedbabu-13.json"
    told = path.read_text()
    path.write_text(told.replace(answer["sha256"]["0"]["model"], "0" * 64))
    assert sorted(one.wrong for one in _verified(tables).outcomes) == [""] * 3 + ["other bits"] * 3
    path.write_text(told.replace(f'"path": "{here()["path"]}"', '"path": "another"'))  # near is enough
    assert [(one.how[:6], one.wrong) for one in _verified(tables).outcomes] == [("within", "")] * 6
    far = json.loads(path.read_text())
    for line in far:
        if line["ours"]:
            line["ours"]["seeds"] = {seed: value - 30 for seed, value in line["ours"]["seeds"].items()}
    path.write_text(json.dumps(far))
    found = _verified(tables)
    assert not found.ok
    assert all("points apart" in one.wrong for one in found.outcomes)


def test_what_does_not_fit_is_counted(tables: Path) -> None:
    assert _verified(tables, minutes=1e-9).left == {"longer than 1e-09 min": 6}
    assert _verified(tables, root=tables).left == {"cifar10 is not there": 6}


def test_the_command_says_what_agrees_and_ends_with_1_where_something_does_not(torso: Torso, tmp_path: Path) -> None:
    few = [cell for cell in cells() if cell.name in ("preset fedavg", "preset fedbabu")]
    records = {cell.name: record for cell, record in run_cells(few, {}) if record}
    Ledger(records, {name: here() for name in records}).write(tmp_path)
    said = torso("reproduce", "--verify", str(tmp_path), "--sample", "2", "--draw", "3")
    assert said.status == 0, said.err
    assert said.out.count("ok, same bits") == 2
    assert "2 of 2 cells agree (--draw 3)" in said.out
    path = tmp_path / "cells.json"
    path.write_text(path.read_text().replace(records["preset fedavg"].model, "0" * 64))
    said = torso("reproduce", "--verify", str(tmp_path), "--sample", "9", "--json")
    assert said.status == 1
    wrong = {one["name"]: one["wrong"] for one in json.loads(said.out)["cells"]}
    assert wrong == {"preset fedavg": "the models differ in bits", "preset fedbabu": ""}
    assert "is not a folder" in torso("reproduce", "--verify", "nowhere").err
    (tmp_path / "empty").mkdir()
    nothing = torso("reproduce", "--verify", "empty")
    assert (nothing.status, nothing.out) == (2, "")
    assert "--verify 'empty' holds no results" in nothing.err
    assert "PAPER/TABLE" in torso("reproduce").err
