"""A table on two workers is the table of one process, whoever dies or stops on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.conftest import Torso

from torso.measure import Accuracy
from torso.papers.commands.progress import TableLines
from torso.papers.experiments.datasets import find_all
from torso.papers.tables.plan import TablePlan, plan
from torso.papers.tables.published import recipe
from torso.papers.tables.reproduce import reproduce
from torso.parallel.orchestrator import Orchestrator
from torso.parallel.ray_pool import RayPool
from torso.runs.events import Begin, Stop
from torso.runs.rounds import Round
from torso.runs.run import Stopped

from ..tiny import QUICK, tiny_cifar10

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.xdist_group("ray")]
RAY = ("run.engine=ray", "run.ray.workers=2")
PART = (
    "shards=2,fraction=0.1,local_epochs=10,method=fedavg|lg-fedavg|fedper|fedbabu"  # LG-FedAvg begins at FedAvg's end
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tiny_cifar10(tmp_path / "data")


def _plan(data: Path, *sets: str, only: str = PART) -> TablePlan:
    return plan(recipe("fedbabu/13"), only, 1, (*QUICK, *sets), find_all(["cifar10"], data))


def _table(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "fedbabu-13" / "table.json").read_text())
    return found


class _Heard(TableLines):
    """What is said of a table; what to do when the first round is heard of."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(Console(file=StringIO(), width=200))
        self.then: Callable[[], None] | None = then
        self.begun: dict[str, int] = {}

    @property
    def said(self) -> str:
        assert isinstance(self.console.file, StringIO)
        return self.console.file.getvalue()

    def begin(self, begin: Begin) -> None:
        assert begin.folder is not None
        self.begun[begin.folder.name.partition("-f0.1")[0]] = begin.done

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if self.then is not None:
            then, self.then = self.then, None
            then()


def hired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of hands, as they start."""
    answer, found = RayPool.answer, list[int]()

    def watched(self: RayPool, call: Any) -> Any:
        said = answer(self, call)
        if isinstance(said, tuple):  # its first word
            found.append(said[0])
        return said

    monkeypatch.setattr(RayPool, "answer", watched)
    return found


def test_a_table_on_two_workers_is_the_table_of_one_process_also_when_one_is_killed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed by its process id while runs still wait: it has one, or is idle and to be given one."""
    reproduce(_plan(data), tmp_path / "here")
    hands = hired(monkeypatch)
    heard = _Heard(lambda: os.kill(hands[0], signal.SIGKILL))
    there = reproduce(_plan(data, *RAY), tmp_path / "there", listener=heard)
    assert _table(tmp_path / "there") == _table(tmp_path / "here")
    assert not there.broken
    assert all(answer["ours"] for answer in there.answers)
    assert any(f"was lost; {then}" in heard.said for then in ("it goes on in another", "another takes its place"))
    assert "fedbabu/13: 5/5  lg-fedavg" in heard.said
    assert heard.begun["lg-fedavg"] == 2
    names = {path.name for path in (tmp_path / "here" / "fedbabu-13").iterdir()}
    assert {path.name for path in (tmp_path / "there" / "fedbabu-13").iterdir()} == names


LONG = ("train.rounds=200", "train.lr=0.001")  # at the table's rate FedAvg diverges in round 17 of these few images
TWO = PART.replace("|lg-fedavg|fedper", "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """The table of two long runs that nobody stopped."""
    data = tiny_cifar10(tmp_path_factory.mktemp("data"))
    out = tmp_path_factory.mktemp("whole")
    reproduce(_plan(data, *LONG, only=TWO), out)
    return _table(out)


@pytest.mark.parametrize(("first", "second"), [(RAY, ()), ((), RAY)])
def test_what_began_on_the_cluster_goes_on_without_and_the_other_way_round(
    first: tuple[str, ...], second: tuple[str, ...], data: Path, tmp_path: Path, whole: list[dict[str, object]]
) -> None:
    stop, heard = Stop(), _Heard()
    with pytest.raises(Stopped, match="of 2 runs finished"):
        reproduce(_plan(data, *LONG, *first, only=TWO), tmp_path / "out", listener=_Heard(stop.ask), stop=stop)
    reproduce(_plan(data, *LONG, *second, only=TWO), tmp_path / "out", listener=heard)
    assert max(heard.begun.values()) > 0  # from a checkpoint
    assert _table(tmp_path / "out") == whole


def test_data_that_a_machine_lacks_end_the_table_with_a_word(
    torso: Torso, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has them; the worker, on another machine, does not: here they go before it looks."""
    send = Orchestrator._send

    def late(self: Orchestrator) -> None:
        (data / "cifar10_jpeg.npz").unlink(missing_ok=True)
        if data.exists():
            data.rmdir()
        send(self)

    monkeypatch.setattr(Orchestrator, "_send", late)
    words = ("reproduce", "fedbabu/13", "--only", PART, "--data-root", str(data), "--out", "out")
    said = torso(*words, sets=(*QUICK, "run.engine=ray", "run.ray.workers=1"))
    assert said.status == 2
    assert f"data.root = '{data}' is not there on" in " ".join(said.err.split())
