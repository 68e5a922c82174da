"""Processes end in order, whoever ends them, and say so."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
from tests.conftest import Torso

from torso.__main__ import main
from torso.signals import terminated_as_interrupted


def test_a_service_manager_ends_a_process_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_fork_ends_as_its_parent_means_it() -> None:
    """A pool of processes is ended with SIGTERM: it must not print a KeyboardInterrupt for each."""
    with terminated_as_interrupted():
        if not (child := os.fork()):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_round_is_answered_in_one_line(
    number: signal.Signals, torso: Torso, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("torso.report.run_command.load_plugins", interrupted)
    said = torso("run", "--out", "here")
    assert (said.status, said.out) == (130, "")
    assert said.err == "torso: stopped at once, by Ctrl-C or SIGTERM\n"
    assert not os.listdir()


def test_ctrl_c_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupts:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "torso.cli":
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.delitem(sys.modules, "torso.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "torso: stopped at once, by Ctrl-C or SIGTERM\n"
