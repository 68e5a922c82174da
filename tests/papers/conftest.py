"""What the tests of this folder share: a command in an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from torso.cli import main


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def torso(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Said]:
    """`torso(...)` runs a command in an empty folder, as the shell would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORSO_DATA", raising=False)

    def call(*words: str, sets: tuple[str, ...] = ()) -> Said:
        monkeypatch.setattr(sys, "argv", ["torso", *words, *(f"--set={text}" for text in sets)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    return call
