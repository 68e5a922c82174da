"""The certified cells: run again here, every one. A change that moves a number is seen, and said in its commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torso
from torso.data.fetch_catalogue import data_home
from torso.errors import RequestError
from torso.methods import methods
from torso.papers.certified import ledger as ledgers
from torso.papers.certified.__main__ import main
from torso.papers.certified.cells import Cell, cells
from torso.papers.certified.ledger import AGAIN, LEDGER, Ledger, moved, roots, run_cells, said
from torso.papers.certified.record import NEAR, Record, differences, sketch
from torso.papers.experiments.code_path import code_path
from torso.personal.state import State

FOLDER = Path(__file__).parents[3] / "docs" / "reproduction"
OF = Record("ok", "data", "model", (10.0, 0.5, -0.5, 0.0), {"generic": 50.0})


def one(name: str = "preset fedavg") -> Cell:
    return next(cell for cell in cells() if cell.name == name)


def test_no_number_has_moved() -> None:
    """About 14 seconds of one core. Data that do not come with Torso are left out where they are not there."""
    known = cells()
    found, absent = moved(Ledger.read(FOLDER), known, roots(known, data_home(None)))
    assert not found, said(found)
    assert all(cell.file for cell in known if cell.name in absent)


def test_every_preset_has_a_record_and_every_record_a_cell() -> None:
    recorded, known = set(Ledger.read(FOLDER).records), {cell.name for cell in cells()}
    assert recorded == known, f"{sorted(recorded ^ known)}: {AGAIN}"
    assert {f"preset {name}" for name in methods.own} <= known
    assert len(known) >= 100


def test_a_sketch_by_hand() -> None:
    """3 and 4 have norm 5. A projection is (±3 ± 4) / 5: one of ±1.4 and ±0.2."""
    norm, *projections = sketch(State.begin({"w": torch.tensor([3.0, 4.0])}))
    assert norm == 5.0
    assert {round(abs(value), 9) for value in projections} <= {1.4, 0.2}
    assert sketch(State.begin({"w": torch.tensor([3.0, -4.0])}))[1:] != tuple(projections)


def test_bits_have_to_be_the_same_on_one_code_path_and_near_on_another() -> None:
    other = replace(OF, model="other")
    assert differences(OF, other, exact=True) == ["the models differ in bits"]
    assert differences(OF, other, exact=False) == []
    near = replace(other, sketch=(10.0 * (1 + NEAR / 2), 0.5 + NEAR / 2, -0.5, 0.0), accuracy={"generic": 59.0})
    assert differences(OF, near, exact=False) == []
    far = replace(other, sketch=(10.0, 0.5, -0.5 - 2 * NEAR, 0.0))
    assert differences(OF, far, exact=False) == ["the models are 6.0e-04 apart, beyond rounding"]
    fewer = replace(other, accuracy={"generic": 39.0})
    assert differences(OF, fewer, exact=False) == ["generic: 50.0 → 39.0"]
    assert differences(OF, replace(OF, accuracy={"generic": 50.1}), exact=True) == ["generic: 50.0 → 50.1"]
    assert differences(OF, replace(OF, data="others"), exact=False) == ["the data differ"]
    assert differences(OF, replace(OF, status="failed"), exact=True) == ["it ended with 'failed', not 'ok'"]
    assert differences(OF, replace(OF, accuracy={}), exact=True) == ["measured: , not generic"]


@pytest.mark.parametrize("change", ["train.lr=0.055", "train.momentum=0.88", "train.weighting=uniform"])
def test_another_rule_is_seen_on_another_code_path_too(change: str) -> None:
    before = Record.of(torso.run(one().config()))
    now = Record.of(torso.run(one().config().but(change)))
    assert any("beyond rounding" in wrong for wrong in differences(before, now, exact=False))


def test_a_new_cell_says_what_to_do() -> None:
    cell = Cell("mine", (*one().sets, "train.rounds=1"))
    found, _ = moved(Ledger({}, {}), [cell], {})
    assert said(found) == f"mine: it has no record yet\nIf the change is intended: {AGAIN}, and say why in the commit"
    assert [record for _, record in run_cells([replace(cell, file="none.npz")], {})] == [None]


def test_the_file_is_written_again_with_what_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that agrees stays; one from another code path stays too if it is near; what is gone is dropped."""
    few = (Cell("a", (*one().sets, "train.rounds=1")), Cell("b", (*one().sets, "train.rounds=1", "run.seed=1")))
    monkeypatch.setattr("torso.papers.certified.__main__.cells", lambda: few)
    main([], tmp_path)
    assert capsys.readouterr().out == "a: new\nb: new\n"
    first = (tmp_path / LEDGER).read_text()
    monkeypatch.setattr(ledgers, "code_path", lambda: "another processor")
    main([], tmp_path)
    assert (tmp_path / LEDGER).read_text() == first
    moved_one = first.replace(Ledger.read(tmp_path).records["b"].data, "0" * 64, 1)
    (tmp_path / LEDGER).write_text(moved_one)
    capsys.readouterr()
    main([], tmp_path)
    assert "the data differ" in capsys.readouterr().out
    assert {made["path"] for made in Ledger.read(tmp_path).made.values()} >= {"another processor"}
    monkeypatch.setattr("torso.papers.certified.__main__.cells", lambda: few[:1])
    main([], tmp_path)
    assert "b: dropped" in capsys.readouterr().out
    (tmp_path / LEDGER).write_text("{}")
    with pytest.raises(RequestError, match=AGAIN):
        Ledger.read(tmp_path)


def test_a_code_path_names_the_processor_and_what_the_environment_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = code_path()
    assert torch.backends.cpu.get_cpu_capability() in usual
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert code_path() == f"{usual}, MKL_CBWR=COMPATIBLE"
