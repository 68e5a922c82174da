"""A run that begins where another ended is the run that it would have been."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runs.samples import digits, last_tensors, result_of, same_tensors, tiny
from torso.papers.experiments.reuse import begin_at, delete_large_checkpoints, finished_runs, opening_key, training_key
from torso.runs.run import run


def test_lg_fedavg_from_a_finished_fedavg_is_lg_fedavg_to_the_bit(tmp_path: Path) -> None:
    fedavg, lg = tiny("fedavg"), tiny("lg-fedavg")
    assert opening_key(lg) == training_key(fedavg)
    run(fedavg, tmp_path / "t" / "fedavg", federation=digits())
    alone = run(lg, tmp_path / "alone", federation=digits())
    begin_at(tmp_path / "t" / "fedavg", lg, tmp_path / "begun")
    begun = run(lg, tmp_path / "begun", resume=True, federation=digits())
    assert begun.rounds == alone.rounds == 5
    assert result_of(tmp_path / "begun") == result_of(tmp_path / "alone")
    assert same_tensors(last_tensors(tmp_path / "begun"), last_tensors(tmp_path / "alone"))


def test_a_run_that_only_measures_otherwise_trains_no_round(tmp_path: Path) -> None:
    first = tiny("fedbabu", 'measure.names=["initial"]')
    other = tiny("fedbabu", 'measure.names=["personalized"]', "personalize.part=head")
    run(first, tmp_path / "t" / "first", federation=digits())
    known = finished_runs(tmp_path)
    begin_at(known[training_key(other)], other, tmp_path / "other")
    assert len((tmp_path / "other" / "history.jsonl").read_text().splitlines()) == 4
    found = run(other, tmp_path / "other", resume=True, federation=digits())
    assert found.accuracy == run(other, federation=digits()).accuracy


@pytest.mark.parametrize(
    "sets",
    [
        ("train.lr=0.2",),
        ("data.shards=3",),
        ("run.seed=1",),
        ("train.rounds=5",),
        ("method.personal=ditto",),
        ("method.personal.refresh=last-visit", "method.personal.name=kept"),
        ("run.precision=bf16",),
        ("measure.every=2",),  # the history would lack what is measured between rounds …
        ('measure.analyses=["norms"]',),  # … or taken of them
    ],
)
def test_what_changes_training_is_not_shared(sets: tuple[str, ...]) -> None:
    assert training_key(tiny("fedavg", *sets)) != training_key(tiny("fedavg"))


@pytest.mark.parametrize("sets", [("method.personal=kept",), ("personalize.epochs=3",), ("measure.batch_size=7",)])
def test_what_only_changes_measures_is_shared(sets: tuple[str, ...]) -> None:
    assert training_key(tiny("fedavg", *sets)) == training_key(tiny("fedavg"))
    assert training_key(tiny("fedavg-ft")) == training_key(tiny("fedavg"))


def test_a_beginning_that_is_cut_short_has_no_checkpoint_without_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("fedavg")
    run(config, tmp_path / "a", federation=digits())

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    copy = shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", lambda a, b: full() if "hist" in str(a) else copy(a, b))
    with pytest.raises(OSError, match="No space"):
        begin_at(tmp_path / "a", config, tmp_path / "b")
    assert not (tmp_path / "b" / "checkpoints").exists()


def test_a_failed_or_damaged_run_is_nobodys_beginning(tmp_path: Path) -> None:
    config = tiny("fedavg")
    run(config, tmp_path / "t" / "a", federation=digits())
    (tensors,) = (tmp_path / "t" / "a" / "checkpoints").glob("*004.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-8] + b"damaged!")
    for older in (tmp_path / "t" / "a" / "checkpoints").glob("*003*"):
        older.unlink()
    begin_at(tmp_path / "t" / "a", config, tmp_path / "b")
    assert not (tmp_path / "b" / "checkpoints").exists()
    result = tmp_path / "t" / "a" / "result.json"
    result.write_text(result.read_text().replace('"ok"', '"failed: non-finite loss"'))
    assert finished_runs(tmp_path) == {}


def test_only_large_checkpoints_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny("fedavg"), tmp_path / "a", federation=digits())
    delete_large_checkpoints([tmp_path / "a"])
    assert (tmp_path / "a" / "checkpoints").is_dir()
    monkeypatch.setattr("torso.papers.experiments.reuse._LARGE", 10)
    delete_large_checkpoints([tmp_path / "a"])
    assert not (tmp_path / "a" / "checkpoints").exists()
    assert (tmp_path / "a" / "result.json").exists()
