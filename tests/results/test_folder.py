"""The run folder: what lies in it, what the same config gives again, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runs.samples import StopAfter, bits, files, history_of, last_tensors, result_of, same_tensors, tiny

import torso
from torso import Config, RequestError, Result, run
from torso.errors import InUse
from torso.locks import held_files
from torso.methods import Finished, methods
from torso.results.folder import RunFolder, new_run_folder
from torso.runs.run import Stopped


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tiny("fedper", "measure.every=2"), tmp_path_factory.mktemp("runs") / "new" / "fedper")


def folder_of(result: Result) -> Path:
    assert result.folder is not None
    return result.folder


def test_the_folder_holds_the_files_of_the_design_and_no_others(finished: Result) -> None:
    assert set(files(folder_of(finished))) == {
        "config.toml",
        "data.json",
        "history.jsonl",
        "result.json",
        "analyses.json",
        "seal.json",
        "checkpoints/round-000003.json",
        "checkpoints/round-000003.safetensors",
        "checkpoints/round-000004.json",
        "checkpoints/round-000004.safetensors",
        *(f"checkpoints/clients-{r:06d}.safetensors" for r in (1, 2, 3, 4)),  # each holds somebody's newest head
    }


def test_result_json_has_the_keys_of_the_design(finished: Result) -> None:
    tree = json.loads((folder_of(finished) / "result.json").read_text())
    assert list(tree) == [
        *("method", "dataset", "model", "seed", "rounds", "status"),
        *("accuracy", "cost", "seconds", "versions", "peak_memory_bytes", "sha256"),
    ]
    assert {name: len(value) for name, value in tree["sha256"].items()} == {"data": 64, "model": 64}
    assert (tree["method"], tree["dataset"], tree["model"]) == ("fedper", "digits", "mlp")
    assert (tree["seed"], tree["rounds"], tree["status"]) == (0, 4, "ok")
    assert set(tree["accuracy"]) == {"initial", "personalized", "without_head", "generic"}
    assert set(tree["cost"]) == {"bytes_up", "bytes_down", "forward_passes", "flops"}
    assert {"train", "measure", "total"} == set(tree["seconds"])
    assert {"python", "torso", "torch", "numpy"} <= set(tree["versions"])


def test_accuracies_are_mean_and_population_std_of_their_clients(finished: Result) -> None:
    accuracy = json.loads((folder_of(finished) / "result.json").read_text())["accuracy"]
    for name, entry in accuracy.items():
        assert set(entry) == {"mean", "std", "n", "clients"}
        if name == "generic":  # one model on the whole test set
            assert (entry["std"], entry["n"], entry["clients"]) == (0, 1, [])
            continue
        assert entry["n"] == len(entry["clients"]) == 10
        assert entry["mean"] == pytest.approx(np.mean(entry["clients"]))
        assert entry["std"] == pytest.approx(np.std(entry["clients"], ddof=0))
        assert all(0 <= value <= 100 for value in entry["clients"])


def test_the_result_is_read_back_from_its_folder(finished: Result) -> None:
    read = Result.read(folder_of(finished))
    assert read.as_json() == finished.as_json()
    assert read.accuracy == finished.accuracy


def test_history_has_a_line_per_round_and_what_was_measured_on_the_way(finished: Result) -> None:
    lines = history_of(folder_of(finished))
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert all(len(line["participants"]) == 3 for line in lines)
    assert [sorted(line.get("accuracy", {})) for line in lines] == [[], ["initial"], [], []]
    assert lines[-1]["bytes_up"] == finished.cost.bytes_up


def test_config_toml_is_complete_and_gives_the_same_run_again(finished: Result, tmp_path: Path) -> None:
    path = folder_of(finished) / "config.toml"
    again = Config.load(path)
    assert again == tiny("fedper", "measure.every=2")
    assert set(tomllib.loads(path.read_text())) == set(Config.model_fields)
    run(again, tmp_path / "again")
    assert result_of(tmp_path / "again") == result_of(folder_of(finished))
    assert history_of(tmp_path / "again") == history_of(folder_of(finished))
    assert same_tensors(last_tensors(tmp_path / "again"), last_tensors(folder_of(finished)))


def test_the_same_config_gives_the_same_bits_with_or_without_a_folder(finished: Result) -> None:
    again = torso.run(tiny("fedper", "measure.every=2"))
    assert again.folder is None
    assert finished.state is not None
    assert again.state is not None
    assert bits(again.state) == bits(finished.state)
    assert again.accuracy == finished.accuracy


def test_another_seed_gives_another_run(finished: Result) -> None:
    other = run(tiny("fedper", "run.seed=1"))
    assert other.state is not None
    assert other.accuracy != finished.accuracy


# what is refused, and that nothing is written then


def test_a_folder_in_use_is_refused_and_left_as_it_is(finished: Result) -> None:
    before = files(folder_of(finished))
    with pytest.raises(RequestError, match=r"already holds a run. Give another folder, or --resume"):
        run(tiny("fedavg"), folder_of(finished))
    assert files(folder_of(finished)) == before


def test_somebody_elses_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RequestError, match="is not empty"):
        run(tiny(), tmp_path)
    assert files(tmp_path) == {"thesis.tex": b"precious"}


def test_of_two_runs_that_found_the_folder_empty_the_second_is_refused(tmp_path: Path) -> None:
    first, second = (RunFolder.check(tmp_path / "one", tiny("fedavg", f"run.seed={seed}"), False) for seed in (1, 2))
    first.create()
    first.append({"round": 1})
    before = files(tmp_path)
    with pytest.raises(RequestError, match=r"one': another run has begun there in the meantime. Give each run its own"):
        second.create()
    assert files(tmp_path) == before


@pytest.fixture
def left_half(tmp_path: Path) -> Path:
    """A run of four rounds that was stopped after the first."""
    listener = StopAfter(1)
    with pytest.raises(Stopped):
        run(tiny("fedper"), tmp_path / "half", listener=listener, stop=listener.stop)
    return tmp_path / "half"


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_two_cannot_go_on_with_one_run_at_a_time(left_half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torso.locks._PATIENCE", 0.2)
    before = files(left_half)
    with (
        RunFolder(left_half, tiny("fedper")).held(),
        pytest.raises(InUse, match=r"another process is running there\. Wait until it ends, or stop it"),
    ):
        run(tiny("fedper"), left_half, resume=True)
    assert files(left_half) == before
    assert run(tiny("fedper"), left_half, resume=True).rounds == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
def test_what_a_run_has_forked_does_not_keep_its_folder(left_half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of somebody's data source, say, which lives on after the run was killed: it does not unlock, it dies."""
    monkeypatch.setattr("torso.locks._PATIENCE", 0.2)
    monkeypatch.setattr("torso.locks._unlock", lambda file: None)
    ours, theirs = os.pipe()
    with RunFolder(left_half, tiny("fedper")).held():
        child = os.fork()
        if not child:
            os.close(theirs)
            os.read(ours, 1)  # until the test is over
            os._exit(0)
    try:
        assert run(tiny("fedper"), left_half, resume=True).rounds == 4
    finally:
        os.close(theirs)
        os.waitpid(child, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_nor_does_what_was_forked_behind_pythons_back(left_half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a library, which has the same open file."""
    monkeypatch.setattr("torso.locks._PATIENCE", 0.2)
    with RunFolder(left_half, tiny("fedper")).held():
        (held,) = held_files
        copy = os.dup(held.fileno())
    try:
        assert run(tiny("fedper"), left_half, resume=True).rounds == 4
    finally:
        os.close(copy)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_what_another_process_has_finished_meanwhile_is_read(finished: Result, left_half: Path) -> None:
    """It lets go of the folder while this one waits for it."""
    held = threading.Event()

    def other() -> None:
        with RunFolder(left_half, tiny("fedper")).held():
            held.set()
            time.sleep(0.3)
            shutil.copy(folder_of(finished) / "result.json", left_half)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    result = run(tiny("fedper"), left_half, resume=True)
    thread.join()
    assert result.accuracy == finished.accuracy
    assert len(history_of(left_half)) == 1


def test_runs_beside_each_other_take_different_free_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        new_run_folder(None, "a") as one,
        new_run_folder(None, "a") as other,
        new_run_folder(Path("mine"), "a") as named,
    ):
        assert [str(path) for path in (one, other, named)] == ["runs/a-1", "runs/a-2", "mine"]
        (other / "config.toml").touch()
    assert [str(path) for path in Path("runs").iterdir()] == ["runs/a-2"]  # what holds nothing is given back


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RequestError, match="is a file"):
        run(tiny(), tmp_path / "file")
    with pytest.raises(RequestError, match="cannot be written"):
        run(tiny(), tmp_path / "file" / "below")


def test_an_empty_folder_is_welcome(tmp_path: Path) -> None:
    assert run(tiny("fedavg", "train.rounds=1"), tmp_path).ok


def test_a_config_that_was_never_written_is_no_run(tmp_path: Path) -> None:
    """Empty, it would be read as the defaults."""
    (tmp_path / "config.toml").touch()
    with pytest.raises(RequestError, match=r"holds no run \(no config.toml\)"):
        run(Config(), tmp_path, resume=True)


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"holds no run \(no config.toml\)"):
        run(tiny(), tmp_path / "nowhere", resume=True)
    with pytest.raises(RequestError, match="out is None"):
        run(tiny(), resume=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_run_of_another_config_is_not_continued(finished: Result) -> None:
    before = files(folder_of(finished))
    with pytest.raises(RequestError, match=r"another config: train\.lr was 0\.1, now 0\.2"):
        run(tiny("fedper", "measure.every=2", "train.lr=0.2"), folder_of(finished), resume=True)
    assert files(folder_of(finished)) == before


def test_a_finished_run_is_read_not_run_again(finished: Result) -> None:
    before = files(folder_of(finished))
    again = run(tiny("fedper", "measure.every=2", "run.workers=2"), folder_of(finished), resume=True)
    assert again.as_json() == finished.as_json()
    assert files(folder_of(finished)) == before


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("method.train=bdy", "method.train: part = 'bdy' is unknown. Accepted: all"),
        ("method.train=blocks:9", r"method.train: part = 'blocks:9' is unknown. .* J from 1 to 2"),
        ("method.share=haed", "method.share: part = 'haed' is unknown"),
        ("method.personal.phases=bdy", "method.personal.phases: part = 'bdy' is unknown"),
        ("method.server_data=bdy", "method.server_data: part = 'bdy' is unknown"),
        ("personalize.part=bdy", "personalize.part: part = 'bdy' is unknown. Accepted: all, full, body"),
        ("method.share=body-norm", "method.share: part = 'norm' holds nothing: this body has no normalisation layers"),
        (
            "method.train=body-blocks:2",
            "method.train: part = 'body-blocks:2' trains nothing: it holds nothing in this",
        ),
        ("method.share=personal", "method.share: part = 'personal' holds nothing in this network. Accepted: all, full"),
        ("method.server_data=all", r"data.server_fraction is 0"),
        ("train.head_lr_factor=0", "trains nothing: .* train.head_lr_factor = 0"),
        ("method.start={name='finished', schedule='cosin'}", "did you mean 'cosine'"),
        ("method.start={name='finished', method='fedavgg'}", "'fedavgg' is unknown; did you mean 'fedavg'"),
        ("method.start={name='finished', run='/nowhere'}", "'/nowhere' is not the folder of a finished run"),
        ("model.body=conv4", "model.body = 'conv4' needs images of at least 16×16, found 8×8"),
        ("run.device=cudda", "run.device = 'cudda' cannot be used here: PyTorch knows no such device. Accepted: "),
        ("run.device=meta", "run.device = 'meta' cannot be used here: it holds no data. Accepted: auto, cpu"),
    ],
)
def test_what_only_the_network_or_the_machine_can_tell_is_refused_before_a_folder_is_made(
    override: str, words: str, tmp_path: Path
) -> None:
    head_only = ["method.train=head"] if "head_lr" in override else []
    with pytest.raises(RequestError, match=words):
        run(tiny("fedavg", *head_only, override), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without an accelerator")
def test_a_device_that_is_not_there_is_not_offered(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"run.device = 'cuda' cannot be used here: [^.]*\. Accepted: auto, cpu$"):
        run(tiny("fedavg", "run.device=cuda"), tmp_path / "out")


def test_a_method_that_begins_at_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods, "snake", replace(methods["fedavg"], name="snake", start=Finished("snake")))
    with pytest.raises(RequestError, match=r"method.start.method = 'snake' begins at itself: snake → snake"):
        run(tiny("snake"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"accuracy": 5}', "no json"])
def test_a_result_that_is_none_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=r"result\.json' is not the result of a run"):
        Result.read(tmp_path)
