"""Runs beside each other on a cluster are the runs one after the other, whoever dies or stops on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import pytest
import ray
from rich.console import Console
from tests.engine.clusters import config
from tests.engine.mortal import Mortal
from tests.runs.samples import Heard, bits, check_packs, history_of, last_tensors, result_of, same_tensors, tiny

from torso import Config, RequestError, Result, run
from torso.data import Federation, build
from torso.errors import NoWorkerLeft
from torso.methods import methods
from torso.parallel.compare import compare
from torso.parallel.hire import pool
from torso.parallel.ray_pool import RayPool
from torso.parallel.together import run_together
from torso.personal import personals
from torso.runs.devices import device_of
from torso.runs.events import Begin
from torso.runs.progress import LiveBars, PlainLines
from torso.runs.run import Stopped

pytestmark = [pytest.mark.usefixtures("lent"), pytest.mark.xdist_group("ray")]
SMALL = ["data.clients=10", "train.rounds=3", "train.fraction=0.3", "personalize.epochs=1", "run.workers=1"]
RAY = ["run.engine=ray", "run.ray.workers=2"]


@pytest.fixture(scope="module")
def hands(cluster: None) -> Iterator[RayPool]:
    """Processes for all tests here: to start some takes longer than such a run."""
    with closing(RayPool(tiny("fedavg", *RAY).run)) as pool:
        yield pool


@pytest.fixture
def lent(hands: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run_together.__kwdefaults__, pool.__name__, hands)  # the parameter is called like the function
    monkeypatch.setattr("torso.parallel.hire.pool", lambda _: nullcontext(hands))


def data(config: Config) -> Federation:
    return build(config.data, config.run.seed, device_of(config.run))


def test_a_comparison_on_the_cluster_is_the_comparison_here(tmp_path: Path) -> None:
    """Every bit of four runs, and one display that tells of all of them by name."""
    console = Console(record=True, width=200)
    here = compare(["fedavg", "fedper"], None, SMALL, seeds=2, out=tmp_path / "here")
    there = compare(
        ["fedavg", "fedper"], None, [*SMALL, *RAY], seeds=2, out=tmp_path / "there", listener=PlainLines(console)
    )
    assert [result.method for result in there] == [result.method for result in here]
    for one, other in zip(here, there, strict=True):
        assert one.folder is not None
        assert other.folder is not None
        assert other.folder.name == one.folder.name
        assert result_of(other.folder) == result_of(one.folder)
        assert history_of(other.folder) == history_of(one.folder)
        assert same_tensors(last_tensors(other.folder), last_tensors(one.folder))
        assert other.accuracy == one.accuracy
    said = console.export_text()
    for name in ("fedavg seed 0", "fedper seed 0", "fedavg seed 1", "fedper seed 1"):
        assert [f"{name}: round {n}/3" in said for n in (1, 2, 3)] == [True] * 3
        assert f"{name}: ok" in said


def test_runs_at_the_same_time_have_a_bar_each() -> None:
    with LiveBars(Console(quiet=True)) as bars:
        one, other = bars.beside(), bars.beside()
        one.begin(Begin("fedavg", 0, 10, 3))
        other.begin(Begin("fedper", 0, 10, 3))
        one.measuring(7)
        assert [task.fields["news"] for task in bars.progress.tasks] == ["measuring 7 clients", ""]


def test_a_run_whose_process_dies_goes_on_in_another_and_is_the_same(
    hands: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(personals, "mortal", Mortal)
    (tmp_path / "lives").mkdir()
    chosen = config("fedper", train={"fraction": 1.0}).model_copy(
        update={"method": methods["fedper"].but(personal=Mortal(folder=str(tmp_path / "lives"), client=5))}
    )
    here = chosen.model_copy(update={"run": chosen.run.model_copy(update={"engine": "one-by-one"})})
    run(here, tmp_path / "whole")
    (tmp_path / "lives" / "one").touch()
    heard = Heard()
    ((_, found),) = run_together([chosen], [tmp_path / "out"], listener=heard, pool=hands, data=data)
    assert found.ok
    assert heard.notes == ["the process of fedper seed 0 was lost; it goes on in another"]
    assert result_of(tmp_path / "out") == result_of(tmp_path / "whole")
    assert same_tensors(last_tensors(tmp_path / "out"), last_tensors(tmp_path / "whole"))


def test_a_stop_reaches_all_runs_and_they_can_be_continued(tmp_path: Path) -> None:
    heard = Heard(stop_at=1)
    sets = [*SMALL, *RAY, "train.rounds=40"]
    with pytest.raises(Stopped, match=r"3 of 3 runs are not finished; .*fedavg seed 0: stopped after round \d+ of 40"):
        compare(["fedavg", "fedper", "fedbabu"], None, sets, out=tmp_path / "out", listener=heard, stop=heard.stop)
    assert not list(tmp_path.rglob("result.json"))
    results = compare(["fedavg", "fedper", "fedbabu"], None, sets, out=tmp_path / "out", resume=True)
    assert [result.rounds for result in results] == [40, 40, 40]
    assert results[0].accuracy == compare(["fedavg"], None, [*SMALL, "train.rounds=40"])[0].accuracy


# packs


def test_packs_on_the_cluster_are_the_packs_here_and_tell_what_breaks(tmp_path: Path) -> None:
    outs = check_packs(tmp_path, RAY, write_place)
    places = {(out / "place").read_text() for out in outs}
    assert str(os.getpid()) not in places
    assert (outs[0] / "place").read_text() == (outs[1] / "place").read_text()


def write_place(config: Config, folder: Path) -> None:
    assert config.run.engine == "auto"
    (folder / "place").write_text(str(os.getpid()))


def test_what_kills_every_process_is_told_of_its_run_and_the_others_go_on(
    hands: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(personals, "mortal", Mortal)
    (tmp_path / "lives").mkdir()
    for name in "ab":
        (tmp_path / "lives" / name).touch()
    monkeypatch.setattr("torso.parallel.orchestrator._TRIES", 2)  # to start processes takes long
    fatal = methods["fedper"].but(personal=Mortal(folder=str(tmp_path / "lives"), client=5))
    asked = [config(method, train={"fraction": 1.0}) for method in (fatal, "fedper")]
    monkeypatch.setattr(hands, "capacity", lambda: 1)
    (_, lost), (_, whole) = run_together(asked, [tmp_path / "0", tmp_path / "1"])
    assert isinstance(lost, NoWorkerLeft)
    assert "2 processes have died over fedper seed 0" in str(lost)
    assert isinstance(whole, Result)
    assert whole.ok
    ((_, again),) = run_together(asked[:1], [tmp_path / "0"])
    assert isinstance(again, Result)
    assert again.accuracy == run(config(fatal, "one-by-one", train={"fraction": 1.0})).accuracy


def test_a_caller_that_has_had_enough_leaves_the_others_with_a_checkpoint(tmp_path: Path) -> None:
    """The short ones end while the long one, which was given out before the last of them, is under way."""
    asked = [tiny("fedper", *RAY, "run.checkpoint_every=0", f"train.rounds={rounds}") for rounds in (1, 2000, 1)]
    ends = run_together(asked, [tmp_path / str(place) for place in range(3)])
    assert sorted(next(ends)[0] for _ in range(2)) == [0, 2]
    ends.close()
    assert not (tmp_path / "1" / "result.json").exists()
    assert list((tmp_path / "1" / "checkpoints").glob("*.json"))


def test_nobody_comes_is_said(tmp_path: Path) -> None:
    """One of three cores is somebody else's, and a worker wants them all."""
    hog = ray.remote(num_cpus=1)(Counter).remote()
    try:
        ray.get(hog.total.remote())
        chosen = tiny("fedavg", *RAY, "run.ray.wait=1", "run.workers=3")
        with (
            pytest.raises(NoWorkerLeft, match=r"has not started within run\.ray\.wait = 1 s; the cluster has 3 cores"),
            pool(chosen.run) as nobody,
        ):
            list(run_together([chosen], [tmp_path / "0"], pool=nobody))
    finally:
        ray.kill(hog)


# the driver


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "torso", *arguments], stderr=subprocess.PIPE, text=True)


def wait_for_a_round(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "round " in line and "loss" in line:
            return
    pytest.fail("the run ended before its first round")


def workers_of(driver: int) -> set[int]:
    """The processes that train; Ray's own take a minute to notice that a driver was killed."""
    parents, found = dict[int, int](), {driver}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    workers = {pid for pid in found if _name(pid).startswith("ray::Worker")}
    assert workers
    return workers


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def assert_all_gone(workers: set[int]) -> None:
    """None of them lives half a minute longer than the driver."""
    for _ in range(300):
        alive = [pid for pid in workers if _name(pid)]  # a zombie has none
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"processes {alive} have outlived the driver")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_a_killed_driver_takes_its_workers_along_and_its_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    chosen = config("fedper", train={"rounds": 40}, run={"ray": {"workers": 1}})
    (tmp_path / "config.toml").write_text(chosen.as_toml())
    folder = str(tmp_path / "out")
    with start("run", str(tmp_path / "config.toml"), "--out", folder) as process:
        wait_for_a_round(process)
        workers = workers_of(process.pid)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert_all_gone(workers)
    assert not (tmp_path / "out" / "result.json").exists()
    resumed = run(chosen, folder, resume=True)
    whole = run(config("fedper", "one-by-one", train={"rounds": 40}))  # one worker adds in the order of one process
    assert resumed.state is not None
    assert whole.state is not None
    assert bits(resumed.state) == bits(whole.state)
    assert resumed.accuracy == whole.accuracy


def test_a_cluster_that_is_not_there_is_named_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 1 of this machine listens to nobody."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    chosen = config("fedavg", run={"ray": {"address": "127.0.0.1:1"}})
    with pytest.raises(RequestError, match=r"run\.ray\.address = '127\.0\.0\.1:1' cannot be reached: .*refused"):
        run(chosen, tmp_path / "out")
    assert not (tmp_path / "out").exists()
