"""`torso report`, `plot`, `watch` and `compare` of folders through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from torso.cli import main

from .samples import write_run


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    """`said("report", "runs")` → (exit status, output, errors), beside two runs in runs/."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/a"), accuracy={"personalized": [70.0, 80.0, 90.0]})
    write_run(Path("runs/b"), "fedbabu", accuracy={"personalized": [81.0, 89.0, 100.0]})

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["torso", *words])
        with pytest.raises(SystemExit) as end:
            main()
        found = capsys.readouterr()
        return int(end.value.code or 0), found.out, found.err

    return call


def test_report_writes_the_page_and_says_where(said) -> None:  # type: ignore[no-untyped-def]
    status, out, err = said("report", "runs", "--out", "deep/page.html")
    assert (status, err) == (0, "")
    assert out.startswith("deep/page.html: 2 runs, 0.")
    assert "fedbabu" in Path("deep/page.html").read_text()
    status, out, _ = said("report", "runs/a", "runs/b", "--baseline", "fedbabu", "--json")
    assert status == 0
    assert json.loads(out)["baseline"] == "fedbabu"
    assert Path("report.html").exists()


def test_plot_writes_one_chart(said) -> None:  # type: ignore[no-untyped-def]
    assert said("plot", "runs", "--kind", "difference", "--out", "x.svg")[0] == 0
    assert Path("x.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "nowhere"), "'nowhere' does not exist"),
        (("report", "."), "x"),
        (("report", "runs", "--baseline", "x"), "--baseline 'x' is not among the runs"),
        (("report", "runs", "--out", "runs"), "is a folder"),
        (("report", "runs", "--out", "runs/a/config.toml/x"), "cannot be written"),
        (("plot", "runs", "--kind", "pie", "--out", "x.svg"), "--kind 'pie' is unknown"),
        (("watch", "nowhere"), "is not a folder"),
        (("compare", "runs", "--baseline", "x"), "--baseline 'x' is not among the runs"),
        (("compare", "fedavg", "runs"), "'runs' is a folder, not a method. Give methods only"),
        (("compare", "fedavg", "fedper", "--baseline", "x"), "--baseline 'x' is not among the methods"),
    ],
)
def test_wrong_requests_exit_2_with_one_message(said, words: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
    if words == ("report", "."):
        Path("empty").mkdir()
        words, message = ("report", "empty"), "is not a run folder and contains none"
    status, out, err = said(*words)
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_compare_reads_folders_and_tells_the_difference(said) -> None:  # type: ignore[no-untyped-def]
    """Differences 11, 9, 10: mean 10, std 1, ± 4.303/√3 = 2.5."""
    status, out, _ = said("compare", "runs")
    assert status == 0
    assert "80.0 ± 8.2" in out
    assert "against fedavg" in out
    assert "+10.0 [+7.5, +12.5]" in out
    status, out, _ = said("compare", "runs/a", "./runs/b", "--baseline", "fedbabu")
    assert "−10.0 [−12.5, −7.5]" in out
    status, out, _ = said("compare", "runs", "--json")
    assert [tree["method"] for tree in json.loads(out)] == ["fedavg", "fedbabu"]


def test_compare_marks_what_failed_is_unfinished_or_of_other_data(said) -> None:  # type: ignore[no-untyped-def]
    write_run(Path("runs/c"), "fedper", status="failed: non-finite loss")
    write_run(Path("runs/d"), "fedprox", sets=["data.shards=4"])
    (write_run(Path("runs/e"), "fedrep") / "result.json").unlink()
    status, out, _ = said("compare", "runs")
    assert status == 0
    assert "(1 of 1 failed)" in out
    assert "(1 of 1 not finished)" in out
    assert "not tested" in out.partition("against")[2].partition("fedprox")[2].partition("fedrep")[0]
    assert "did not have the same clients" in " ".join(out.split())


def test_a_run_whose_seed_is_unknown_is_named_without_one(said) -> None:  # type: ignore[no-untyped-def]
    Path("runs/bad").mkdir()
    Path("runs/bad/config.toml").write_text("x")
    _, out, _ = said("compare", "runs")
    assert "bad (bad): config.toml cannot be read" in " ".join(out.split())
    assert "seed None" not in out


def test_watch_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    command = [sys.executable, "-m", "torso", "watch", str(tmp_path), "--port", "0"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell has in the background ignores it
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" on ")[1].split()[0]
        with urllib.request.urlopen(f"{url}state.json", timeout=10) as answer:
            assert json.load(answer)["runs"][0]["name"] == "a"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.wait()
