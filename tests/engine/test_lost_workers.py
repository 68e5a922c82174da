"""Whoever dies on the way, the run is the same or ends with a checkpoint; whatever a run measures goes through."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import ObjectLostError
from tests.engine.clusters import assert_near, config, last_of_first
from tests.engine.mortal import Mortal, number
from tests.runs.samples import bits, history_of
from torch import Tensor

from torso import RequestError, run
from torso.engine import Workspace, engines
from torso.engine.cluster import Cluster
from torso.engine.state_handles import RayStateHandle
from torso.errors import NoWorkerLeft
from torso.measure import measures
from torso.measure.analyses import analyses
from torso.measure.base import Measurement
from torso.methods import methods
from torso.personal import personals
from torso.personal.store import Store
from torso.runs.events import Listener
from torso.runs.job import simulate
from torso.runs.visit import Visit

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.xdist_group("ray")]


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(personals, "mortal", Mortal)


# all that a run does


def test_personal_heads_from_a_hypernetwork_too() -> None:
    assert_near(run(config("fedrod-hyper", "one-by-one")), run(config("fedrod-hyper")))


def test_every_measure_and_analysis_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own pass, newcomers, analyses of rounds and of the end, and a measure that workers do not know."""
    monkeypatch.setitem(measures, "number", Measurement(number, "clients", "how many samples"))
    fitting = sorted(name for name, known in measures.items() if not known.two_heads)  # fedavg has one
    sections: dict[str, Any] = {
        "data": {"new_clients": 3},
        "train": {"rounds": 2},
        "attack": {"kind": "backdoor", "fraction": 0.2},
        "measure": {"names": fitting, "analyses": sorted(analyses), "every": 1, "during": ["initial"]},
        "personalize": {"part": "full", "sweep": [0, 2]},
    }
    alone = run(config("fedavg-data-sharing", "one-by-one", **sections))
    found = run(config("fedavg-data-sharing", **sections))
    assert_near(alone, found)
    assert found.accuracy["number"] == alone.accuracy["number"]
    assert found.analyses.keys() == alone.analyses.keys()
    assert found.analyses["norms"]["local_seen_weight"] == pytest.approx(alone.analyses["norms"]["local_seen_weight"])
    assert found.analyses["cross_client"]["clients"] == alone.analyses["cross_client"]["clients"]


# workers that die


@pytest.mark.usefixtures("mortal")
def test_what_kills_every_worker_ends_the_run_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torso.engine.cluster._TRIES", 2)  # to start workers takes long
    (tmp_path / "lives").mkdir()
    for name in "ab":
        (tmp_path / "lives" / name).touch()
    method = methods["fedper"].but(personal=Mortal(folder=str(tmp_path / "lives"), client=last_of_first(1)))
    with pytest.raises(
        NoWorkerLeft, match=r"2 workers have died over the same .* stopped after round 1 of 3, with a check"
    ):
        run(config(method, run={"ray": {"workers": 1}}), tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()
    found = run(config(method, "one-by-one"), tmp_path / "out", resume=True)  # elsewhere
    assert_near(run(config(method, "one-by-one")), found)


@ray.remote(num_cpus=1)
class Hog:
    """Takes the room of a worker that dies."""

    def here(self) -> bool:
        return True


@pytest.mark.usefixtures("mortal")
@pytest.mark.parametrize("workers", [3, 1])
def test_a_cluster_that_shrinks(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do the share, in the rounds to come too, and no bit changes; where none is left the run ends, with a
    checkpoint and a command to go on with."""
    (tmp_path / "lives").mkdir()
    train = {"fraction": 1.0}
    client = last_of_first(workers, train=train)
    method = methods["fedper"].but(personal=Mortal(folder=str(tmp_path / "lives"), client=client))
    chosen = config(method, train=train, run={"ray": {"workers": workers}})
    whole = run(config(method, "one-by-one", train=train))
    (tmp_path / "lives" / "one").touch()
    hogs, clusters, make = list[Any](), list[Cluster](), engines["ray"]
    monkeypatch.setitem(engines, "ray", lambda *given: clusters.append(made := make(*given)) or made)

    class Crowd(Listener):
        """Once the workers are there, others wait for their room, and who is to replace one is not waited for long."""

        def begin(self, begin: Any) -> None:
            hogs.extend(Hog.remote() for _ in range(2 if workers == 3 else 3))
            (cluster,) = clusters
            cluster.run = cluster.run.model_copy(update={"ray": cluster.run.ray.model_copy(update={"wait": 1.0})})

    try:
        if workers == 3:
            (tmp_path / "lives" / "two").touch()  # who does the share of the first dies of it, too
            found = run(chosen, tmp_path / "out", listener=Crowd())
            assert whole.state is not None
            assert found.state is not None
            assert bits(found.state) == bits(whole.state)
            assert found.accuracy == whole.accuracy
            lines = [json.loads(line) for line in (tmp_path / "out" / "history.jsonl").read_text().splitlines()]
            replaced = lines[1]["replaced"]
            assert [note.partition(" (")[0] for note in replaced] == ["worker 1", "worker 2", "worker 2"]
            assert all("there was none to take its place, and worker" in note for note in replaced)
            assert "worker 3 (" in replaced[1]
        else:
            with pytest.raises(
                NoWorkerLeft, match=r"no worker is left.*run\.ray\.wait = 1 s.*stopped after round 1 of 3"
            ):
                run(chosen, tmp_path / "out", listener=Crowd())
            assert list((tmp_path / "out" / "checkpoints").glob("round-000001.json"))
    finally:
        for hog in hogs:
            ray.kill(hog)


@ray.remote(num_cpus=0)
class Machine:
    """Holds something that is lost with it."""

    def keep(self) -> list[Any]:
        return [ray.put("what a client held")]


class WithoutAMachine(Cluster):
    """In round 3 it turns out that a machine is gone, with what all clients held."""

    def add_up(self, work: Any, clients: Sequence[int], store: Store | None, total: Any) -> Any:
        if isinstance(work, Visit) and work.told.round == 3 and store is not None:
            machine = Machine.remote()
            (lost,) = ray.get(machine.keep.remote())
            ray.kill(machine)
            with suppress(ObjectLostError):
                while ray.get(lost):  # until Ray has noticed
                    time.sleep(0.1)
            store.entries |= {client: RayStateHandle(client, lost) for client in store}
        return super().add_up(work, clients, store, total)


def test_a_machine_that_is_lost_with_what_clients_held_ends_the_run_at_its_last_checkpoint(tmp_path: Path) -> None:
    whole = run(config("fedper", "one-by-one"))
    words = r"were lost with the machine .* stopped after round 2 of 3; what came after the last checkpoint is lost\."
    with pytest.raises(NoWorkerLeft, match=words):
        run(
            config("fedper"),
            tmp_path / "out",
            engine=WithoutAMachine,
        )
    found = run(config("fedper", "one-by-one"), tmp_path / "out", resume=True)
    assert [line["round"] for line in history_of(tmp_path / "out")] == [1, 2, 3]
    assert whole.state is not None
    assert found.state is not None
    assert bits(found.state) == bits(whole.state)


# errors


def test_more_workers_than_there_is_room_for_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"run\.ray\.workers = 4: worker \d has not started within run\.ray\.wait = 1 s"
    ):
        run(config("fedavg", run={"ray": {"workers": 4, "wait": 1.0}}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_accelerators_that_are_not_there_are_asked_for_by_key() -> None:
    with pytest.raises(RequestError, match=r"run\.ray\.gpus_per_worker = 1\.0 .*has 3 cores and 0 accelerators"):
        run(config("fedavg", run={"ray": {"gpus_per_worker": 1.0}}))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RequestError, match=r'pip install "torso\[ray\]"'):
        run(config("fedavg"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class Halves:
    """Work that makes a tensor."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        return torch.tensor([float(k) / 2 for k in clients])


def test_a_late_answer_of_a_lost_worker_is_not_taken_for_what_its_successor_holds() -> None:
    job = simulate(config("fedavg", run={"ray": {"workers": 1}}))
    with Cluster(job.net, job.federation, job.config.run) as cluster:
        late, early = cluster._send(Halves(), [(cluster.workers[0], [2]), (cluster.workers[0], [3])])
        ray.wait([late.answer, early.answer], num_returns=2)
        cluster._replacement(early)  # lost while it did another share; the first has come back before
        (found,) = cluster._answer(Halves(), late)
        assert found.tolist() == [1.0]
        assert cluster.workers[0].cache_record.holds == set()
        assert [half.tolist() for half in cluster.map(Halves(), [5])] == [[2.5]]
