"""A finished run goes on where nothing but train.rounds has grown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.conftest import Torso
from tests.runs.samples import Heard, files, history_of, last_tensors, result_of, same_tensors, tiny

import torso as library
from torso import Config, RequestError
from torso.runs.run import Stopped


def config(rounds: int, *sets: str, method: str = "fedper") -> Config:
    return tiny(method, f"train.rounds={rounds}", "train.schedule=const", "measure.names=initial", *sets)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    assert library.run(config(2), place / "short").ok
    assert library.run(config(4), place / "long").ok
    return place


@pytest.fixture
def short(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "short", tmp_path / "short"))


def test_an_extended_run_is_the_run_of_all_its_rounds(made: Path, short: Path) -> None:
    """Stopped once more on the way, and finished by an ordinary resume."""
    listener = Heard(stop_at=3)
    with pytest.raises(Stopped):
        library.run(config(4), short, resume=True, listener=listener, stop=listener.stop)
    assert listener.notes == ["the finished run of 2 rounds goes on to round 4"]
    assert library.run(Config.load(short / "config.toml"), short, resume=True).rounds == 4
    assert result_of(short) == result_of(made / "long")
    assert history_of(short) == history_of(made / "long")
    assert same_tensors(last_tensors(short), last_tensors(made / "long"))
    assert json.loads((short / "result-after-2.json").read_text())["rounds"] == 2
    assert library.load(short).network(0) is not None


def test_the_command_line_extends(short: Path, torso: Torso) -> None:
    said = torso("run", "--out", str(short), "--resume", sets=("train.rounds=3",))
    assert said.status == 0
    assert "the finished run of 2 rounds goes on to round 3" in said.err
    assert "learning rates" not in said.err
    assert torso("run", "--out", str(short), "--resume").status == 0


def test_a_schedule_that_goes_by_the_number_of_rounds_is_told(tmp_path: Path) -> None:
    cosine = config(2, "train.schedule=cosine")
    assert library.run(cosine, tmp_path / "run").ok
    seen = Heard()
    assert library.run(cosine.but("train.rounds=3"), tmp_path / "run", resume=True, listener=seen).ok
    assert "train.schedule = 'cosine' goes by the number of rounds, so the first 2 had other" in seen.notes[0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (config(1), "train.rounds was 2, now 1"),
        (config(3, "train.lr=0.2"), "train.lr was 0.1, now 0.2"),
    ],
)
def test_other_changes_are_refused(asked: Config, said: str, short: Path) -> None:
    before = files(short)
    with pytest.raises(RequestError, match=said):
        library.run(asked, short, resume=True)
    assert files(short) == before


def test_what_cannot_go_on_is_refused(short: Path) -> None:
    shutil.rmtree(short / "checkpoints")
    before = files(short)
    with pytest.raises(RequestError, match="holds no checkpoint of round 2"):
        library.run(config(3), short, resume=True)
    assert files(short) == before
    (short / "result.json").unlink()
    with pytest.raises(RequestError, match=r"has not finished its 2 rounds. Finish it first with: torso run --out"):
        library.run(config(3), short, resume=True)
