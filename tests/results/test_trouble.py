"""A full disk, a name that is too long, a scheduler that ends the run: one line, and the last checkpoint is kept."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Torso
from tests.runs.samples import history_of, result_of, tiny

import torso as library
from torso.errors import CannotWrite, RequestError
from torso.report.write import write_file
from torso.runs.events import Listener
from torso.runs.progress import PlainLines

TINY = ("data.clients=10", "train.rounds=3", "run.checkpoint_every=1", "measure.names=initial")


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """What the system says to a write beyond it is what a full disk says, but for the word."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Fills(Listener):
    """The disk is full after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, round: Any, seconds: float, accuracy: Any) -> None:
        if round.round == self.after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    config = tiny("fedper", *TINY)
    expected = library.run(config, tmp_path / "whole")
    with no_file_above(10**9), pytest.raises(CannotWrite) as caught:
        library.run(config, tmp_path / "run", listener=Fills(after=2))
    said = str(caught.value)
    assert "checkpoints/round-000003.safetensors' cannot be written: File too large. The checkpoint of round 2" in said
    assert f"continue with: torso run {tmp_path}/run/config.toml --out {tmp_path}/run --resume" in said
    assert caught.value.exit_status == 1
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert library.run(config, tmp_path / "run", resume=True).accuracy == expected.accuracy
    assert history_of(tmp_path / "run") == history_of(tmp_path / "whole")
    assert result_of(tmp_path / "run") == result_of(tmp_path / "whole")


def test_a_run_that_cannot_begin_leaves_nothing(torso: Torso) -> None:
    with no_file_above(100):
        said = torso("run", "--out", "here", sets=TINY)
    assert said.status == 2
    assert "--out 'here' cannot be written: 'here/config.toml' cannot be written: File too large" in said.err
    assert not Path("here").exists()


def test_a_small_disk(torso: Torso) -> None:
    """It has room for one checkpoint, and not for the next beside it."""
    Path("small").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", "small"], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no small disk can be made here: " + mounted.stderr.decode().strip())
    try:
        said = torso("run", "--out", "small/run", sets=TINY)
        kept = {path.name for path in Path("small/run/checkpoints").iterdir()}
    finally:
        subprocess.run(["umount", "-l", "small"], check=True)
    assert said.status == 1
    assert "cannot be written: No space left on device. The checkpoint of round 1 is kept. Make room" in said.err
    assert kept == {"round-000001.json", "round-000001.safetensors"}


def test_a_report_is_whole_or_the_old_one(tmp_path: Path) -> None:
    """With room for half of it, the page that was there stays."""
    page = tmp_path / "page.html"
    page.write_text("the old page")
    with no_file_above(1000), pytest.raises(RequestError, match=r"page.html' cannot be written: File too large\. Give"):
        write_file(page, b"x" * 2000)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "the old page"


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", LONG),
        ("run", "--out", "file/below"),
        ("compare", "fedavg", "fedper", "--out", LONG),
        ("compare", "fedavg", "--out", "file/below"),
        ("export", "nowhere", "--out", LONG),
        ("report", "run", "--out", LONG),
        ("report", "run", "--out", "file/page.html"),
        ("run", "--out", "file", "--resume"),
        ("run", LONG),
        ("export", LONG, "--out", "models"),
    ],
)
def test_names_that_no_file_can_have_end_in_one_line(words: tuple[str, ...], torso: Torso) -> None:
    Path("file").touch()
    Path("run").mkdir()
    Path("run/config.toml").write_text("")
    said = torso(*words, sets=TINY if words[0] in ("run", "compare") else ())
    assert said.status in (1, 2)
    assert said.err.startswith("torso: ")
    assert len(said.err.splitlines()) == 1
    assert sorted(path.name for path in Path().iterdir()) == ["file", "run"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(torso: Torso) -> None:
    Path("fixed").mkdir(mode=0o500)
    said = torso("run", "--out", "fixed/run", sets=TINY)
    assert (said.status, "Permission denied" in said.err) == (2, True)


def test_checkpoints_that_are_a_file_end_in_one_line(tmp_path: Path) -> None:
    class Blocks(Listener):
        def begin(self, begin: Any) -> None:
            (tmp_path / "run" / "checkpoints").touch()

    with pytest.raises(CannotWrite, match=r"checkpoints' cannot be written: File exists. There is no checkpoint yet"):
        library.run(tiny("fedavg", *TINY), tmp_path / "run", listener=Blocks())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint(
    number: signal.Signals, torso: Torso, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = PlainLines.round

    def then_signal(self: PlainLines, round: Any, *words: Any) -> None:
        told(self, round, *words)
        if round.round == 1:
            signal.raise_signal(number)

    monkeypatch.setattr(PlainLines, "round", then_signal)
    before = signal.getsignal(number)
    said = torso("run", "--out", "here", sets=TINY)
    assert said.status == 130
    assert "stopped after round 1 of 3, with a checkpoint. Continue with: torso run here/config.toml" in said.err
    assert signal.getsignal(number) is before
