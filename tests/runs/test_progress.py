"""Progress of `torso.run` and `torso.compare` in Python: shown when asked, beside the user's own listener."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import torso
from torso import Listener
from torso.runs import progress

from .samples import digits, tiny


class Heard(Listener):
    """Writes down which hooks were called."""

    def __init__(self) -> None:
        self.hooks: list[str] = []

    def begin(self, begin: object) -> None:
        self.hooks.append("begin")

    def round(self, round: object, seconds: float, accuracy: object) -> None:
        self.hooks.append("round")

    def measuring(self, clients: int) -> None:
        self.hooks.append("measuring")

    def end(self, result: object) -> None:
        self.hooks.append("end")


def test_a_script_is_quiet_unless_it_asks(capsys: pytest.CaptureFixture[str]) -> None:
    torso.run(tiny(), federation=digits())
    torso.run(tiny(), federation=digits(), progress=False)
    assert capsys.readouterr() == ("", "")
    heard = Heard()
    result = torso.run(tiny(), federation=digits(), progress=True, listener=heard)
    said = capsys.readouterr()
    assert said.out == ""
    assert f"round {result.rounds}/{result.rounds}" in said.err
    assert heard.hooks == ["begin", *["round"] * result.rounds, "measuring", "end"]


def test_a_comparison_shows_each_run_once(capsys: pytest.CaptureFixture[str]) -> None:
    for methods in (["fedavg"], ["fedavg", "fedbabu"]):
        heard = Heard()
        torso.compare(methods, tiny(), progress=True, listener=heard)
        said = capsys.readouterr().err.splitlines()
        assert [line.split()[0] for line in said if "rounds," in line] == methods
        assert heard.hooks.count("end") == len(methods)


def test_a_notebook_shows_a_bar_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich knows a notebook by the shell of IPython."""
    assert not progress.is_shown(None)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert progress.is_shown(None)
    assert not progress.is_shown(False)


def test_something_is_shown_before_the_first_run_begins() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with progress.LiveBars(console) as bars:
        bars.progress.refresh()
        assert [task.description for task in bars.progress.tasks] == ["reading data"]
        beside = [bars.beside(), bars.beside()]
        for number, each in enumerate(beside):
            each.begin(progress.Begin(f"method-{number}", 0, 10, 3))
        assert [task.description for task in bars.progress.tasks] == ["method-0 seed 0", "method-1 seed 0"]


def test_a_loss_that_grows_is_short() -> None:
    assert progress.loss_of(0.12346, 4) == "loss 0.1235"
    assert progress.loss_of(85137185758888357756728770560.0, 4) == "loss 8.5e+28"
