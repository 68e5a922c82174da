"""A run that stops, is killed, or finds damaged checkpoints gives the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Torso
from tests.runs.samples import (
    TINY,
    StopAfter,
    assert_same_run,
    digits,
    files,
    history_of,
    last_tensors,
    result_of,
    same_tensors,
    tiny,
)

from torso import RequestError, run
from torso.results.folder import RunFolder
from torso.runs.run import Stopped

METHODS = ("fedper", "lg-fedavg")  # one keeps heads with clients; the other has two stages and keeps bodies


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same runs, left alone."""
    folders = {method: tmp_path_factory.mktemp("whole") / method for method in METHODS}
    for method, folder in folders.items():
        assert run(tiny(method), folder).ok
    return folders


# stopped


@pytest.mark.parametrize("method", METHODS)
def test_stopped_after_any_round_and_resumed_it_is_the_same_run(
    method: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    rounds = len(history_of(whole[method]))
    for last in range(1, rounds):
        folder = tmp_path / str(last)
        listener = StopAfter(last)
        with pytest.raises(Stopped, match=f"stopped after round {last} of {rounds}, with a checkpoint"):
            run(tiny(method, "run.checkpoint_every=0"), folder, listener=listener, stop=listener.stop)
        assert not (folder / "result.json").exists()
        seen = StopAfter(99)
        run(tiny(method), folder, resume=True, listener=seen, stop=seen.stop)
        assert f"continuing after round {last}, from {folder / 'checkpoints' / f'round-{last:06d}.json'}" == seen.began
        assert result_of(folder) == result_of(whole[method])
        assert history_of(folder) == history_of(whole[method])
        assert same_tensors(last_tensors(folder), last_tensors(whole[method]))


def test_a_stop_after_the_last_round_leaves_the_measures_to_the_next_time(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    listener, folder = StopAfter(4), tmp_path / "out"
    with pytest.raises(Stopped, match="stopped after round 4 of 4, before all was measured, with a checkpoint"):
        run(tiny("fedper"), folder, listener=listener, stop=listener.stop)
    assert not (folder / "result.json").exists()
    run(tiny("fedper"), folder, resume=True)
    assert_same_run(folder, whole["fedper"])


def test_a_stop_without_a_folder_says_that_there_is_nothing_to_resume() -> None:
    listener = StopAfter(1)
    with pytest.raises(Stopped, match="stopped after round 1 of 4; without a folder there is nothing to resume"):
        run(tiny(), listener=listener, stop=listener.stop)


def test_a_stop_before_the_first_round_is_heeded_there(whole: dict[str, Path], tmp_path: Path) -> None:
    listener = StopAfter(0)
    with pytest.raises(Stopped, match=r"^stopped after round 0 of 4\. Continue with: torso run .* --resume$"):
        run(tiny("fedper"), tmp_path / "out", listener=listener, stop=listener.stop)
    run(tiny("fedper"), tmp_path / "out", resume=True)
    assert_same_run(tmp_path / "out", whole["fedper"])


# killed


class Death(BaseException):
    """What SIGKILL looks like from inside: nothing that comes after it happens."""


class Mortal:
    """Dies at the n-th of the moments between two changes on disk, leaving half a file where one is being written."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        fsync, replace, unlink, append = os.fsync, Path.replace, Path.unlink, RunFolder.append

        def torn_fsync(file: int) -> None:
            self.pass_by(lambda: os.ftruncate(file, os.fstat(file).st_size // 2))
            fsync(file)

        def torn_append(folder: RunFolder, line: dict[str, Any]) -> None:
            with (folder.path / "history.jsonl").open("a") as file:
                self.pass_by(lambda: file.write(json.dumps(line)[:40]))
            append(folder, line)

        def then(work: Callable[..., Any]) -> Callable[..., Any]:
            def done(*args: Any, **kwargs: Any) -> Any:
                made = work(*args, **kwargs)
                self.pass_by(lambda: None)
                return made

            return done

        patch.setattr(os, "fsync", torn_fsync)
        patch.setattr(Path, "replace", then(replace))
        patch.setattr(Path, "unlink", then(unlink))
        patch.setattr(RunFolder, "append", torn_append)

    def pass_by(self, last_words: Callable[[], object]) -> None:
        if self.left == 0:
            last_words()
            raise Death
        self.left -= 1


def assert_two_are_kept(checkpoints: Path, *rounds: int) -> None:
    """The checkpoints of these rounds, the files of clients that they name, and nothing else."""
    notes = [checkpoints / f"round-{r:06d}.json" for r in rounds]
    clients = {name for note in notes for name in json.loads(note.read_text())["clients"]}
    expected = {note.with_suffix(kind).name for note in notes for kind in (".json", ".safetensors")}
    assert {p.name for p in checkpoints.iterdir()} == expected | clients


@pytest.mark.parametrize("every", [1, 2])
def test_dead_at_any_change_on_disk_and_resumed_it_is_the_same_run(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, whole, deaths = tiny("fedper", f"run.checkpoint_every={every}", "measure.names=initial"), tmp_path / "w", 0
    run(tiny("fedper", "measure.names=initial"), whole, federation=digits())
    for moment in range(2, 100):  # before that, config.toml is not there: no run has begun
        folder = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            Mortal(patch, moment)
            try:
                run(config, folder, federation=digits())
            except Death:
                deaths += 1
            else:
                break  # it outlived its moment
        run(config, folder, resume=True, federation=digits())
        assert result_of(folder) == result_of(whole), moment
        assert history_of(folder) == history_of(whole), moment
        assert same_tensors(last_tensors(folder), last_tensors(whole)), moment
        assert_two_are_kept(folder / "checkpoints", 4 - every, 4)
    assert deaths > 10


LONG = ("fedper", "train.rounds=60", "measure.every=7", "run.checkpoint_every=2")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torso", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_rounds(process: subprocess.Popen[str], rounds: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        rounds -= "round " in line and "loss" in line
        if not rounds:
            return
    pytest.fail(f"the run ended {rounds} rounds too early")


def test_killed_again_and_again_at_random_moments_it_is_the_same_run(tmp_path: Path) -> None:
    config, folder = tiny(*LONG), tmp_path / "out"
    (tmp_path / "config.toml").write_text(config.as_toml())
    begin: tuple[str, ...] = ("run", str(tmp_path / "config.toml"), "--out", str(folder))
    for _ in range(2):  # the second is one that goes on
        with start(*begin) as process:
            wait_for_rounds(process, 3)  # it has a checkpoint
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(random.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        begin = ("run", "--out", str(folder), "--resume")
    assert not (folder / "result.json").exists()
    seen = StopAfter(99)
    run(config, folder, resume=True, listener=seen, stop=seen.stop)
    assert seen.began.startswith("continuing after round ")
    run(config, tmp_path / "whole")
    assert_same_run(folder, tmp_path / "whole")


def test_ctrl_c_ends_after_the_round_and_names_a_command_that_works(torso: Torso, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    sets = [f"--set={text}" for text in (*TINY, "method.name=fedper", *LONG[1:])]
    with start("run", "--out", str(folder), *sets) as process:
        wait_for_rounds(process, 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert "stopping after this round" in err
    assert "Traceback" not in err
    last = history_of(folder)[-1]["round"]
    assert f"stopped after round {last} of 60, with a checkpoint. Continue with: " in err
    assert (folder / "checkpoints" / f"round-{last:06d}.json").exists()
    command = shlex.split(err.strip().splitlines()[-1].partition("Continue with: ")[2])
    assert command[0] == "torso"
    said = torso(*command[1:])
    assert said.status == 0
    assert f"continuing after round {last}, from {folder}" in said.err
    run(tiny(*LONG), tmp_path / "whole")
    assert_same_run(folder, tmp_path / "whole")


# damaged


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after round 3, with checkpoints of rounds 2 and 3."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    listener = StopAfter(3)
    with pytest.raises(Stopped):
        run(tiny("fedper"), folder, listener=listener, stop=listener.stop)
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def garbage(path: Path) -> None:
    path.write_bytes(b'{"round": \xff')


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *((damage, "round-000003.json") for damage in (flip, truncate, garbage)),
        *((damage, "round-000003.safetensors") for damage in (flip, truncate, garbage, Path.unlink)),
        *((damage, "clients-000003.safetensors") for damage in (flip, truncate, garbage, Path.unlink)),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_aloud(
    damage: Callable[[Path], None], name: str, stopped: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    damage(folder / "checkpoints" / name)
    seen = StopAfter(99)
    run(tiny("fedper"), folder, resume=True, listener=seen, stop=seen.stop)
    assert "continuing after round 2, from " in seen.began
    assert "round-000003.json is damaged (" in seen.began
    assert seen.began.endswith("), passed over")
    assert_same_run(folder, whole["fedper"])


@pytest.mark.parametrize("line", ['{"round": 2}', "[1, 2]", '"2"', '{"round": "2", "seconds": 1}', "{", "\\xff"])
def test_a_line_of_the_history_that_is_no_round_is_passed_over_aloud(
    line: str, stopped: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    lines = (folder / "history.jsonl").read_text().splitlines()
    (folder / "history.jsonl").write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    seen = StopAfter(99)
    run(tiny("fedper"), folder, resume=True, listener=seen, stop=seen.stop)
    assert seen.began.endswith(f"; {folder / 'history.jsonl'}, line 2 is not a round, passed over")
    assert result_of(folder) == result_of(whole["fedper"])
    assert history_of(folder) == [told for told in history_of(whole["fedper"]) if told["round"] != 2]


def test_tensors_without_a_note_are_no_checkpoint(stopped: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / "checkpoints" / "round-000003.json").unlink()
    seen = StopAfter(99)
    run(tiny("fedper"), folder, resume=True, listener=seen, stop=seen.stop)
    assert seen.began == f"continuing after round 2, from {folder / 'checkpoints' / 'round-000002.json'}"
    assert_same_run(folder, whole["fedper"])


def test_when_every_checkpoint_is_damaged_nothing_is_done(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    flip(folder / "checkpoints" / "round-000003.safetensors")
    garbage(folder / "checkpoints" / "round-000002.json")
    before = files(folder)
    with pytest.raises(RequestError) as caught:
        run(tiny("fedper"), folder, resume=True)
    assert caught.value.exit_status == 2
    assert "no whole checkpoint in" in str(caught.value)
    assert "round-000003.json is damaged (the checksum of round-000003.safetensors does not match)" in str(caught.value)
    assert "round-000002.json is damaged" in str(caught.value)
    assert files(folder) == before


def test_without_any_checkpoint_it_begins_again(stopped: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    shutil.rmtree(folder / "checkpoints")
    seen = StopAfter(99)
    run(tiny("fedper"), folder, resume=True, listener=seen, stop=seen.stop)
    assert seen.began == "no checkpoint yet: from the first round"
    assert_same_run(folder, whole["fedper"])


def test_a_checkpoint_of_another_config_is_refused(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    other = tiny("fedper", "train.lr=0.2")
    (folder / "config.toml").write_text(other.as_toml())  # as if checkpoints had been copied into another run
    before = files(folder)
    with pytest.raises(RequestError, match=r"round-000003.json' comes from another config") as caught:
        run(other, folder, resume=True)
    assert caught.value.exit_status == 2
    assert files(folder) == before


def test_how_a_run_is_carried_out_may_change_on_the_way(stopped: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    run(tiny("fedper", "run.workers=3", "run.checkpoint_every=0"), folder, resume=True)
    assert result_of(folder) == result_of(whole["fedper"])


# kept


def test_the_last_two_checkpoints_are_kept_and_tensors_are_not_pickled(whole: dict[str, Path]) -> None:
    folder = whole["fedper"] / "checkpoints"
    assert_two_are_kept(folder, 3, 4)
    names = set(last_tensors(whole["fedper"]))  # read by safetensors
    assert any(name.startswith("model/body.") for name in names)
    clients = {int(name.split("/")[0].removeprefix("client ")) for name in names if "/kept/" in name}
    met = json.loads((folder / "round-000004.json").read_text())["met"]
    assert clients == set(met)  # a client that never trained has no state


@pytest.mark.parametrize(("every", "rounds"), [(0, [4]), (3, [3, 4]), (10, [4])])
def test_checkpoints_come_as_often_as_asked_and_at_the_end(every: int, rounds: list[int], tmp_path: Path) -> None:
    run(tiny("fedavg", f"run.checkpoint_every={every}"), tmp_path / "run")
    found = sorted((tmp_path / "run" / "checkpoints").glob("*.json"))
    assert [p.name for p in found] == [f"round-{r:06d}.json" for r in rounds]
