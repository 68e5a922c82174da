"""The local page: what it tells of runs that train, fail and fall silent, and what it refuses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from torso.errors import RequestError
from torso.report import watch
from torso.report.records import read
from torso.report.watch import Watcher, planned_rounds, serve

from .samples import write_run

Ask = Callable[..., tuple[int, str]]


def training(folder: Path, done: int = 3, rounds: int = 10) -> Path:
    """A run in its middle: no result, half a line at the end of its history."""
    write_run(folder, rounds=rounds)
    (folder / "result.json").unlink()
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:done]) + lines[done][:20])
    return folder


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """A server on a folder with one run in training, one finished, one failed, and a link that leads out."""
    root = tmp_path / "runs"
    training(root / "going")
    write_run(root / "done", "fedbabu")
    write_run(root / "broken", "fedper", status="failed: non-finite loss")
    write_run(tmp_path / "secret")
    (root / "link").symlink_to(tmp_path / "secret")
    with serve(root, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()

        def get(path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
            connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        yield get
        server.shutdown()


def test_progress_time_left_and_news(ask: Ask) -> None:
    status, text = ask("/state.json")
    assert status == 200
    found = {row["name"]: row for row in json.loads(text)["runs"]}
    assert set(found) == {"going", "done", "broken"}  # the link is passed over
    going = found["going"]
    assert (going["round"], going["rounds"], going["status"]) == (3, 10, "unfinished")
    assert going["left"] == pytest.approx(3.5)  # seven rounds of half a second
    assert going["quiet"] is None
    assert "initial 30.0 ± 5.0" in going["news"]
    assert found["done"]["left"] is None
    assert found["broken"]["status"] == "failed: non-finite loss"
    assert all(chart["svg"].startswith("<svg") for chart in json.loads(text)["charts"])


def test_runs_of_one_name_keep_the_folder_above_them(tmp_path: Path) -> None:
    for folder in ("one/fedavg-seed0", "two/fedavg-seed0", "two/fedavg-seed1"):
        write_run(tmp_path / folder)
    state = Watcher(tmp_path).state()
    assert [row["name"] for row in state["runs"]] == ["one/fedavg-seed0", "two/fedavg-seed0", "fedavg-seed1"]


def test_a_run_that_has_fallen_silent_is_marked(tmp_path: Path) -> None:
    folder = training(tmp_path / "a")
    for path in folder.iterdir():
        os.utime(path, (time.time() - 600, time.time() - 600))
    (row,) = Watcher(tmp_path).state()["runs"]
    assert row["quiet"] == pytest.approx(600, abs=5)


def test_the_log_is_of_runs_below_the_folder_only(ask: Ask) -> None:
    status, text = ask("/log?run=going")
    assert status == 200
    assert text.splitlines()[0] == "round 1  2 clients  loss 1.0000  lr 0.1  0.50 s  initial 10.0 ± 5.0"
    for path in ("../secret", "/etc", "going/../../secret", "link", "nothing", "..%2fsecret", "%00"):
        assert ask(f"/log?run={path}")[0] in (400, 404), path


def test_the_log_tells_of_workers_that_were_replaced() -> None:
    line = {"round": 2, "loss": 1.0, "replaced": ["worker 1 was lost; worker 1 did it again"]}
    assert watch._line(line) == "round 2  loss 1.0000  worker 1 was lost; worker 1 did it again"
    assert watch._line({"round": 2, "replaced": 7}) == "round 2"


def test_nothing_else_is_served(ask: Ask) -> None:
    for path in ("/going/config.toml", "/../secret/config.toml", "/etc/passwd", "/state.json/x"):
        assert ask(path)[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert ask("/state.json", method)[0] == 501
    assert ask("/state.json", Host="evil.example")[0] == 403  # a name that was made to point here


def test_the_page_needs_nothing_from_elsewhere(ask: Ask) -> None:
    status, page = ask("/")
    assert status == 200
    assert "default-src 'none'" in page
    assert "connect-src 'self'" in page


def test_a_folder_without_runs_is_fine_and_no_folder_is_not(tmp_path: Path) -> None:
    assert Watcher(tmp_path).state()["runs"] == []
    with pytest.raises(RequestError, match="is not a folder"):
        serve(tmp_path / "gone", 0)
    with serve(tmp_path, 0) as server, pytest.raises(RequestError, match="cannot be used"):
        serve(tmp_path, server.server_address[1])
    with pytest.raises(RequestError, match="cannot be used"):
        serve(tmp_path, 99999)


def test_rounds_that_come_before_are_planned_too(tmp_path: Path) -> None:
    """LG-FedAvg: FedAvg's 8 rounds, then a quarter of them."""
    assert planned_rounds(read(write_run(tmp_path / "a", "lg-fedavg", rounds=8))) == 10
    assert planned_rounds(read(write_run(tmp_path / "b", "fedncm", rounds=8))) == 0
    assert planned_rounds(read(write_run(tmp_path / "c", rounds=8))) == 8
