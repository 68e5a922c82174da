"""Runs in several processes of this machine are the runs of one, whoever dies or stops on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import Torso
from tests.engine.mortal import Hungry, Mortal, Poison
from tests.papers.tiny import QUICK, tiny_cifar10
from tests.runs.samples import Heard, assert_same_run, check_packs, last_tensors, result_of, same_tensors, tiny

from torso import Config, RequestError, Result, run
from torso.errors import NoWorkerLeft
from torso.measure import Accuracy
from torso.methods import Method, methods
from torso.parallel.hire import pool, processes_for
from torso.parallel.pool import ProcessLost
from torso.parallel.processes import LocalPool
from torso.parallel.together import run_together
from torso.personal import Personal, personals
from torso.runs.rounds import Round
from torso.runs.run import Stopped

pytestmark = pytest.mark.xdist_group("processes")  # the processes are started once
TABLE = ("reproduce", "fedbabu/13", "--data-root", "data", "--quiet", "--out")
PART = ("--only", "shards=2,fraction=0.1,local_epochs=10,method=fedavg|lg-fedavg|fedper")


class Quick(LocalPool):
    """Processes that fork from one that has loaded torch: to load it takes longer than all that is done here. Those of
    the command line, below, begin at nothing."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.context = get_context("forkserver")  # type: ignore[assignment]  # it has the same functions
        self.context.set_forkserver_preload(["torso.parallel.processes", __name__])


@pytest.fixture(scope="module")
def hands() -> Iterator[LocalPool]:
    """For all tests here."""
    with closing(Quick(2)) as pool:
        yield pool


def write_place(config: Config, folder: Path) -> None:
    (folder / "place").write_text(str(os.getpid()))


def test_packs_in_two_processes_are_the_packs_here_and_tell_what_breaks(hands: LocalPool, tmp_path: Path) -> None:
    outs = check_packs(tmp_path, (), write_place, hands)
    places = [(out / "place").read_text() for out in outs]
    assert str(os.getpid()) not in places
    assert places[0] == places[1]


def test_features_are_computed_once_in_other_processes_too(hands: LocalPool, tmp_path: Path) -> None:
    asked = [tiny("lp", "train.local_epochs=2", f"run.seed={seed}") for seed in (0, 1)]
    outs = [tmp_path / str(seed) for seed in (0, 1)]
    assert sorted(place for place, _ in run_together(asked, outs, pool=hands)) == [0, 1]
    for config, out in zip(asked, outs, strict=True):
        run(config, tmp_path / "here" / out.name)
        assert_same_run(out, tmp_path / "here" / out.name)


@pytest.fixture
def fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Method:
    """A method that kills its process as often as `lives` has files; only this process has registered it."""
    monkeypatch.setitem(personals, "mortal", Mortal)
    (tmp_path / "lives").mkdir()
    return methods["fedper"].but(personal=Mortal(folder=str(tmp_path / "lives"), client=5))


def _with(method: Method) -> Config:
    return tiny("fedper", "train.fraction=1.0").model_copy(update={"method": method})


def test_a_run_whose_process_dies_goes_on_in_another_and_is_the_same(
    hands: LocalPool, fatal: Method, tmp_path: Path
) -> None:
    run(_with(fatal), tmp_path / "whole")
    (tmp_path / "lives" / "one").touch()
    heard = Heard()
    ((_, found),) = run_together([_with(fatal)], [tmp_path / "out"], listener=heard, pool=hands)
    assert isinstance(found, Result)
    assert found.ok
    assert heard.notes == ["the process of fedper seed 0 was lost; it goes on in another"]
    assert result_of(tmp_path / "out") == result_of(tmp_path / "whole")
    assert same_tensors(last_tensors(tmp_path / "out"), last_tensors(tmp_path / "whole"))


def test_what_kills_every_process_is_told_of_its_run_and_the_others_go_on(
    hands: LocalPool, fatal: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / "lives" / name).touch()
    monkeypatch.setattr("torso.parallel.orchestrator._TRIES", 2)
    asked = [_with(fatal), tiny("fedper", "train.rounds=1")]
    found = dict(run_together(asked, [tmp_path / "0", tmp_path / "1"], pool=hands))
    assert isinstance(found[0], NoWorkerLeft)
    said = rf"2 processes have died over fedper seed 0; of the last: process \d+ ended with status -{signal.SIGKILL:d}"
    with pytest.raises(NoWorkerLeft, match=said):
        raise found[0]
    assert isinstance(found[1], Result)
    assert found[1].ok


def test_processes_that_died_while_they_were_idle_are_replaced_and_no_runs_fault(
    hands: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of them as a run may cost."""
    monkeypatch.setattr("torso.parallel.orchestrator._TRIES", 2)  # to start processes takes long
    while len(hands.idle) < 2:
        hands.idle.append(hands.start()[0])
    for worker in hands.idle:
        worker.process.kill()
        worker.process.join()
    ((_, found),) = run_together([tiny("fedavg")], [tmp_path / "after"], pool=hands)
    assert isinstance(found, Result)
    assert found.ok


def test_a_process_whose_accelerator_is_broken_takes_no_other_run(
    hands: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(personals, "poison", Poison)
    (tmp_path / "lives").mkdir()
    (tmp_path / "lives" / "one").touch()
    heard = Heard()
    poisoned = methods["fedper"].but(personal=Poison(folder=str(tmp_path / "lives")))
    asked = [_with(poisoned), *(tiny("fedavg", f"run.seed={seed}") for seed in range(3))]
    outs = [tmp_path / str(place) for place in range(4)]
    found = dict(run_together(asked, outs, listener=heard, pool=hands))
    assert all(isinstance(result, Result) and result.ok for result in found.values())
    assert heard.notes == ["the process of fedper seed 0 was lost; it goes on in another"]


@pytest.mark.parametrize(("times", "beside"), [(1, True), (2, False), (3, False)])
def test_a_run_without_memory_is_tried_again_beside_fewer_others(
    hands: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, beside: bool
) -> None:
    """It goes on after its last checkpoint and is the run that never lacked memory. Alone it gets three tries."""
    monkeypatch.setitem(personals, "hungry", Hungry)
    monkeypatch.setattr("torso.parallel.orchestrator._MEMORY_WAIT", 0.01)
    (tmp_path / "lives").mkdir()
    hungry = _with(methods["fedper"].but(personal=Hungry(folder=str(tmp_path / "lives"))))
    run(hungry, tmp_path / "whole")
    for life in range(times):
        (tmp_path / "lives" / str(life)).touch()
    others = [tiny("fedavg", "train.rounds=60")] if beside else []
    heard = Heard()
    outs = [tmp_path / str(place) for place in range(1 + beside)]
    found = dict(run_together([hungry, *others], outs, listener=heard, pool=hands))
    assert all(isinstance(found[place], Result) for place in range(1, len(outs)))
    assert heard.notes == ["the device's memory is used up; tried again with 1 process"] * min(times, 2)
    if times > 2:
        assert isinstance(found[0], torch.OutOfMemoryError)
        return
    assert result_of(outs[0]) == result_of(tmp_path / "whole")


def test_with_fewer_processes_each_may_use_more_of_the_device(
    hands: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that did not fit into a part of the memory is tried again with all of it."""
    monkeypatch.setitem(personals, "hungry", Hungry)
    monkeypatch.setattr("torso.parallel.orchestrator._MEMORY_WAIT", 0.01)
    lives = tmp_path / "lives"
    lives.mkdir()
    (lives / "0").touch()
    given, submit = list[int](), hands.submit
    monkeypatch.setattr(hands, "submit", lambda worker, task: given.append(task.company) or submit(worker, task))
    hungry = _with(methods["fedper"].but(personal=Hungry(folder=str(lives))))
    ((_, found),) = run_together([hungry], [tmp_path / "out"], pool=hands)
    assert isinstance(found, Result)
    assert given == [2, 1]


def test_those_that_are_there_go_on_where_no_other_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = LocalPool.start, list[Any]()

    def once(self: LocalPool) -> Any:
        if started:
            raise ProcessLost("no memory is left for it")
        started.append(start(self))
        return started[0]

    monkeypatch.setattr(LocalPool, "start", once)
    asked = [tiny("fedavg", f"run.seed={seed}") for seed in range(3)]
    with closing(Quick(2)) as pool:
        found = dict(run_together(asked, [tmp_path / str(place) for place in range(3)], pool=pool))
        assert all(isinstance(result, Result) and result.ok for result in found.values())
    with closing(Quick(2)) as pool, pytest.raises(NoWorkerLeft, match="3 workers could not start: no memory is left"):
        list(run_together(asked, [tmp_path / f"again {place}" for place in range(3)], pool=pool))


def test_processes_that_die_as_soon_as_they_are_there_are_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = LocalPool.answer

    def deadly(self: LocalPool, call: Any) -> Any:
        said = answer(self, call)
        call.process.kill()
        call.process.join()
        return said

    monkeypatch.setattr(LocalPool, "answer", deadly)
    monkeypatch.setattr("torso.parallel.orchestrator._TRIES", 2)  # to start processes takes long
    with (
        closing(Quick(2)) as pool,
        pytest.raises(NoWorkerLeft, match=r"2 workers could not start: .* while it was idle"),
    ):
        list(run_together([tiny()], [tmp_path / "0"], pool=pool))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
def test_a_dead_process_is_noticed_though_what_it_has_forked_lives_on(hands: LocalPool, tmp_path: Path) -> None:
    """The helper holds the pipe of its dead parent until this test lets it go."""
    (tmp_path / "lives").mkdir()
    (tmp_path / "lives" / "one").touch()
    heard = Heard()
    after = partial(forks_and_dies, tmp_path / "lives")
    ((_, found),) = run_together([tiny()], [tmp_path / "0"], after=after, listener=heard, pool=hands)
    (tmp_path / "over").touch()
    assert isinstance(found, Result)
    assert heard.notes == ["the process of fedavg seed 0 was lost; it goes on in another"]


def forks_and_dies(lives: Path, config: Config, folder: Path) -> None:
    if not list(lives.iterdir()):
        return
    (lives / "one").unlink()
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(600):
        if (lives.parent / "over").exists():
            break
        time.sleep(0.1)
    os._exit(0)


class Breaks(Heard):
    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        raise KeyError("a listener's own trouble")


def test_what_goes_wrong_here_leaves_those_under_way_with_a_checkpoint(tmp_path: Path) -> None:
    """And no process behind."""
    asked = [tiny("fedper", "run.checkpoint_every=0", "train.rounds=2000")]
    with closing(Quick(2)) as pool, pytest.raises(KeyError, match="own trouble"):
        list(run_together(asked, [tmp_path / "0"], listener=Breaks(), pool=pool))
    assert list((tmp_path / "0" / "checkpoints").glob("*.json"))
    assert not pool.idle


class StopsWhileMeasuring(Heard):
    def measuring(self, clients: int) -> None:
        self.stop.ask()


def test_a_stop_is_heard_while_a_run_is_measured(hands: LocalPool, tmp_path: Path) -> None:
    heard = StopsWhileMeasuring()
    asked = tiny("fedper", "train.rounds=1", "personalize.epochs=200", "run.clients_at_once=1")  # heard between clients
    with pytest.raises(Stopped, match="fedper seed 0: stopped after round 1 of 1"):
        list(run_together([asked], [tmp_path / "0"], listener=heard, stop=heard.stop, pool=hands))
    assert not (tmp_path / "0" / "result.json").exists()


def hears_sigterm() -> bool:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and signal.SIGTERM not in blocked


def with_help(config: Config, folder: Path) -> None:
    """What a user's source may do: have processes of its own, which end when they are told to."""
    with get_context("spawn").Pool(1) as pool:
        (folder / "help").write_text(str(pool.apply(hears_sigterm)))


def test_a_process_may_have_processes_of_its_own(hands: LocalPool, tmp_path: Path) -> None:
    list(run_together([tiny("fedavg", "train.rounds=1")], [tmp_path / "0"], after=with_help, pool=hands))
    assert (tmp_path / "0" / "help").read_text() == "True"


def test_a_stop_reaches_all_runs_they_can_be_continued_and_the_processes_go_on(
    hands: LocalPool, tmp_path: Path
) -> None:
    heard = Heard(stop_at=1)
    asked = [tiny(method, "train.rounds=60") for method in ("fedavg", "fedper", "fedbabu")]
    outs = [tmp_path / str(place) for place in range(3)]
    with pytest.raises(Stopped, match=r"3 of 3 runs are not finished; .*fedavg seed 0: stopped after round \d+ of 60"):
        list(run_together(asked, outs, listener=heard, stop=heard.stop, pool=hands))
    assert not list(tmp_path.rglob("result.json"))
    found = dict(run_together(asked, outs, pool=hands))
    first = found[0]
    assert isinstance(first, Result)
    assert first.accuracy == run(asked[0]).accuracy


def test_a_caller_that_has_had_enough_leaves_the_others_with_a_checkpoint(hands: LocalPool, tmp_path: Path) -> None:
    asked = [tiny("fedper", "run.checkpoint_every=0", f"train.rounds={rounds}") for rounds in (1, 2000, 1)]
    ends = run_together(asked, [tmp_path / str(place) for place in range(3)], pool=hands)
    assert sorted(next(ends)[0] for _ in range(2)) == [0, 2]
    ends.close()
    assert not (tmp_path / "1" / "result.json").exists()
    assert list((tmp_path / "1" / "checkpoints").glob("*.json"))


def test_what_cannot_be_given_to_another_process_is_refused(
    hands: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden(Personal):
        """In a function: nobody can import it."""

    monkeypatch.setitem(personals, "hidden", Hidden)
    before = len(hands.idle)
    with pytest.raises(RequestError, match=r"cannot be given to another process: .*Hidden.* Define it at the top of"):
        list(run_together([tiny()], [tmp_path / "0"], pool=hands))
    assert len(hands.idle) >= before


def unknown(config: Config, folder: Path) -> None:
    """As if it stood in a notebook: the other process cannot import it."""


def test_what_another_process_cannot_import_is_refused_in_words(
    hands: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown, "__module__", "notebook")
    monkeypatch.setitem(sys.modules, "notebook", sys.modules[__name__])
    ((_, found),) = run_together([tiny()], [tmp_path / "0"], after=unknown, pool=hands)
    assert isinstance(found, RequestError)
    assert "cannot be given to another process: No module named 'notebook'" in str(found)
    ((_, after),) = run_together([tiny()], [tmp_path / "1"], pool=hands)
    assert isinstance(after, Result)


def test_a_cluster_has_its_own_processes() -> None:
    said = r"--processes 2 and run\.engine = 'ray': .* run\.ray\.workers sets the number of workers"
    with pytest.raises(RequestError, match=said), pool(tiny("fedavg", "run.engine=ray").run, 2):
        pass


@pytest.mark.parametrize(
    ("cores", "gigabytes", "count"),
    [(16, 140, 4), (16, 80, 4), (16, 48, 2), (16, 24, 1), (16, 8, 1), (4, 140, 2), (1, 140, 1)],
)
def test_an_accelerator_is_filled_as_far_as_cores_and_memory_go(
    cores: int, gigabytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torso.parallel.hire.device_of", lambda run: torch.device("cuda"))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=gigabytes * 2**30)
    )
    assert processes_for(tiny().run) == count
    assert processes_for(tiny("fedavg", "run.engine=ray").run) == 1


def test_on_cpu_one_process_does_it_and_it_is_this_one() -> None:
    assert processes_for(tiny().run) == 1

    with pool(tiny().run) as nobody:
        assert nobody is None


# the command line


def _answers(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "fedbabu-13" / "table.json").read_text())
    return found


def test_a_table_of_two_processes_is_the_table_of_one(torso: Torso, tmp_path: Path) -> None:
    """LG-FedAvg begins at FedAvg's end, which another process has trained."""
    Path("data").mkdir()
    tiny_cifar10(Path("data"))
    for out, more in (("one", ()), ("two", ("--processes", "2"))):
        assert torso(*TABLE, out, *PART, *more, sets=QUICK).status == 0
    assert _answers(Path("two")) == _answers(Path("one"))
    assert any(answer["ours"] for answer in _answers(Path("two")))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_stops_all_and_the_same_command_goes_on(torso: Torso, tmp_path: Path) -> None:
    """Sent to the whole group, as a terminal does, once both have begun."""
    Path("data").mkdir()
    tiny_cifar10(Path("data"))
    sets = [word for key in (*QUICK, "train.rounds=100000", "train.lr=1e-5") for word in ("--set", key)]
    words = [word for word in TABLE if word != "--quiet"]
    command = [sys.executable, "-m", "torso", *words, "out", *PART, "--processes", "2", *sets]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for _ in range(1200):
            if len(list(Path("out").glob("*/*/history.jsonl"))) == 2 or process.poll() is not None:
                break
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "stopped with 0 of" in " ".join(said.split())
    assert list(Path("out").glob("*/*/checkpoints/*.json"))
