"""One folder for caches: whose variables decide, and what happens where it cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torso.caches import CACHE, cache_root, keep_compiled

BOTH = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (CACHE, "XDG_CACHE_HOME", *BOTH):
        monkeypatch.setenv(name, "")  # so that it is restored, whatever is set in the test
        monkeypatch.delenv(name)


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "torso"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/torso")
    monkeypatch.setenv(CACHE, "~/mine")
    assert cache_root() == tmp_path / "mine"


def test_compilers_keep_their_kernels_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "new" / "cache"))
    keep_compiled()
    expected = [str(tmp_path / "new" / "cache" / name) for name in ("triton", "inductor")]
    assert [os.environ[name] for name in BOTH] == expected
    assert not (tmp_path / "new").exists()  # they make it themselves


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE, str(tmp_path / "file" / "cache"))
    keep_compiled()
    assert not any(name in os.environ for name in BOTH)
