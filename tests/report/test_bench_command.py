"""`torso bench pfl`: the published setting, and a table or JSON of a shorter run."""

from __future__ import annotations

import json

import pytest
from tests.conftest import Torso

from torso.report import pfl_bench
from torso.report.pfl_bench import measure_pfl, pfl_config, process_seconds


def test_the_setting_is_the_published_one() -> None:
    config = pfl_config("cifar10", "", 1500, "auto", "cpu", 0)
    train, data = config.train, config.data
    assert (data.clients, data.partition, data.augment, config.model.body) == (1000, "iid", "none", "pfl-cnn")
    assert (train.rounds, train.local_epochs, train.batch_size, train.lr) == (1500, 1, 10, 0.1)
    assert (train.momentum, train.weight_decay, train.schedule) == (0, 0, "const")
    assert round(train.fraction * data.clients) == 50
    assert (config.measure.every, config.measure.during) == (10, ("generic",))


def few(*sets: str) -> dict[str, object]:
    small = ("data.clients=40", "data.synthetic.samples=800", "data.synthetic.test_samples=50", "data.synthetic.size=8")
    return measure_pfl(pfl_config("synthetic", "", 3, "auto", "cpu", 0).but(*small, "run.workers=1", *sets))


def test_it_runs_with_fewer_rounds() -> None:
    found = few()
    assert (found["status"], found["rounds"], found["precision"]) == ("ok", 3, "fp32")
    assert all(isinstance(found[key], float) for key in ("training_s", "measuring_s", "process_s", "accuracy"))
    parts = ("imports_s", "data_s", "training_s", "measuring_s", "other_s")
    assert sum(float(str(found[part])) for part in parts) == pytest.approx(found["process_s"], abs=0.05)
    assert process_seconds() > 0


def test_the_command_prints_what_it_measured(torso: Torso, monkeypatch: pytest.MonkeyPatch) -> None:
    made = few()
    monkeypatch.setattr(pfl_bench, "measure_pfl", lambda *_: made)
    said = torso("bench", "pfl", "--source", "synthetic", "--quiet", "--json")
    assert said.status == 0
    assert json.loads(said.out) == made
    said = torso("bench", "pfl", "--source", "synthetic", "--quiet")
    assert said.status == 0
    assert "ms a round" in said.out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(("--source", "mnist"), "--source 'mnist' is unknown"), (("--precision", "fp8"), "--precision 'fp8' is unknown")],
)
def test_wrong_words_are_refused(wrong: tuple[str, str], words: str, torso: Torso) -> None:
    said = torso("bench", "pfl", *wrong)
    assert said.status == 2
    assert words in " ".join(said.err.split())
