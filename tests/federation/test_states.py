"""Runs that follow one another, clients that come back as others, folders that are resumed: nothing is mixed up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.federation.at_home import CPU, Wire, homes_of, site_data
from tests.federation.test_bits import sha256
from tests.federation.test_faults import KillAfter, Killed, assert_same, config_of, federated

import torso
from torso.data.images import Images
from torso.errors import NoWorkerLeft, RequestError
from torso.federation.client_service import ClientService
from torso.federation.models import export_own, is_home
from torso.federation.run import FederationFile, run_federation
from torso.federation.site_data import SiteData
from torso.federation.versions import ClientStateFiles
from torso.measure import Accuracy
from torso.runs.events import Listener, Stop
from torso.runs.job import simulate
from torso.runs.rounds import Round
from torso.runs.run import Stopped


def turned(data: SiteData) -> SiteData:
    """As many samples, and others."""
    train = Images(np.ascontiguousarray(data.train.samples[:, ::-1]), data.train.labels)
    return replace(data, train=train)


def fewer(data: SiteData) -> SiteData:
    return replace(data, train=data.train.take(np.arange(5)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (turned, "its data are not those that it began the run with"),
        (fewer, "it has 5 training and"),
    ],
)
def test_a_client_that_comes_back_with_other_data_is_refused(change: Any, reason: str, tmp_path: Path) -> None:
    config, printed = config_of("fedper"), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    before = wire.homes["client-1"]

    class Swap(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {"client-1"} if round.round == 1 else set()
            if round.round == 2:
                wire.homes["client-1"] = ClientService(
                    "client-1", change(before.data), before.folder, CPU, say=lambda _: None
                )

    found = run_federation(config, wire, tmp_path / "real", say=printed.append, listener=Swap())
    assert found.ok
    assert any(text.startswith("client-1 is refused: ") and reason in text for text in printed), printed
    rounds = [json.loads(line) for line in (tmp_path / "real" / "history.jsonl").read_text().splitlines()]
    assert [1 in line["participants"] for line in rounds] == [True, False, False, False]
    assert found.accuracy["initial"].clients[1] is None
    wire.homes["client-1"] = before  # with its own data it is what it was
    federated(config, wire, tmp_path / "real", resume=True)
    assert list((before.folder / "models").glob("*.safetensors"))


def test_two_runs_take_turns_at_one_client(tmp_path: Path) -> None:
    """Each has its own state; one is killed, the other runs, the first goes on."""
    config, other = config_of("fedper"), config_of("ditto")
    simulated = torso.run(config, tmp_path / "simulated")
    homes = homes_of(config, tmp_path / "homes")
    with pytest.raises(Killed):
        federated(config, Wire(homes), tmp_path / "real", listener=KillAfter(2))
    assert federated(other, Wire(homes), tmp_path / "other").ok
    federated(config, Wire(homes), tmp_path / "real", resume=True)
    for home in homes.values():
        for path in (home.folder / "models").glob(f"{FederationFile.read(tmp_path / 'other').run}.*"):
            path.unlink()
    assert_same(tmp_path, "fedper", simulated)


def test_a_client_holds_the_samples_of_one_run_at_a_time(tmp_path: Path) -> None:
    config = config_of("fedavg", "train.rounds=1")
    homes = homes_of(config, tmp_path / "homes")
    for number in range(3):
        federated(config, Wire(homes), tmp_path / f"real-{number}")
    assert all(not home._runs for home in homes.values())


def test_resume_after_resume(tmp_path: Path) -> None:
    config = config_of("scaffold", "run.checkpoint_every=2")
    simulated = torso.run(config, tmp_path / "simulated")
    for last in (1, 3, 3):  # no checkpoint yet; one of round 2; the same once more
        resume, wire = (tmp_path / "real").exists(), Wire(homes_of(config, tmp_path / "homes"))
        with pytest.raises(Killed):
            federated(config, wire, tmp_path / "real", listener=KillAfter(last), resume=resume)
    federated(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", resume=True)
    assert_same(tmp_path, "scaffold", simulated)


def test_newcomers_keep_their_numbers_across_a_resume(tmp_path: Path) -> None:
    config = config_of("fedrod-hyper", "run.checkpoint_every=2")
    simulated = torso.run(config, tmp_path / "simulated")
    others = simulate(config.but("run.seed=7"))

    def late(name: str, client: int) -> ClientService:
        return ClientService(name, site_data(others, client), tmp_path / "homes" / name, CPU, say=lambda _: None)

    class Come(KillAfter):
        def __init__(self, round: int, wire: Wire, home: ClientService) -> None:
            super().__init__(round)
            self.wire, self.home = wire, home

        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            self.wire.homes[self.home.name] = self.home
            super().round(round, seconds, accuracy)

    wire = Wire(homes_of(config, tmp_path / "homes"))
    with pytest.raises(Killed):
        federated(config, wire, tmp_path / "real", listener=Come(3, wire, late("zoe", 2)))
    wire = Wire(homes_of(config, tmp_path / "homes"))  # the first newcomer is away now, and another comes
    federated(config, wire, tmp_path / "real", listener=Come(9, wire, late("adam", 3)), resume=True)
    assert FederationFile.read(tmp_path / "real").agreement.names[5:] == ("zoe", "adam")
    assert FederationFile.read(tmp_path / "real").agreement.newcomers == (5, 6)
    assert_same(tmp_path, "fedrod-hyper", simulated)
    wire.homes["zoe"] = late("zoe", 2)
    federated(config, wire, tmp_path / "real", resume=True)
    data = site_data(others, 2)
    (path,) = (tmp_path / "homes" / "zoe" / "models").glob("*.safetensors")
    assert sha256(load_file(path)) == sha256(simulated.newcomer(data.train.samples, data.train.labels).contents())
    assert list((tmp_path / "homes" / "adam" / "models").glob("*.safetensors"))


def test_one_client_is_enough_to_be_handed_its_model(tmp_path: Path) -> None:
    """A run that has ended needs no train.min_clients."""
    config = config_of("fedbabu", "train.min_clients=3", "run.flower.wait=0.5")
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class Leave(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {"client-1"} if round.round == 3 else wire.absent

    federated(config, wire, tmp_path / "real", listener=Leave())
    wire.absent = set(wire.homes) - {"client-1"}
    federated(config, wire, tmp_path / "real", resume=True)
    assert list((tmp_path / "homes" / "client-1" / "models").glob("*.safetensors"))
    assert set(FederationFile.read(tmp_path / "real").delivered) == set(wire.homes)


@pytest.mark.parametrize("every", [0, 5])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_what_a_client_holds_does_not_grow_with_the_rounds(every: int, fraction: float, tmp_path: Path) -> None:
    """A state for each of the two checkpoints, and for the last round that counted; one more while it trains."""
    sets = ("train.rounds=20", f"run.checkpoint_every={every}", f"train.fraction={fraction}", "measure.names=[]")
    most: dict[str, int] = {}

    class Count(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            for folder in (tmp_path / "homes").glob("*/runs/*"):
                most[folder.parts[-3]] = max(most.get(folder.parts[-3], 0), len(ClientStateFiles(folder).rounds()))

    config = config_of("fedper", *sets)
    federated(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", listener=Count())
    assert max(most.values()) <= 4


def test_another_config_is_refused_before_anybody_is_waited_for(tmp_path: Path) -> None:
    config = config_of("fedavg", "train.rounds=1")
    wire = Wire(homes_of(config, tmp_path / "homes"))
    federated(config, wire, tmp_path / "real")
    wire.asked.clear()
    with pytest.raises(RequestError, match=r"has another config: train.lr was"):
        federated(config.but("train.lr=0.5"), wire, tmp_path / "real", resume=True)
    assert wire.asked == []


def test_who_waits_for_clients_can_be_stopped(tmp_path: Path) -> None:
    config, stop = config_of("fedavg", "run.flower.wait=600"), Stop()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    wire.absent = {"client-0"}
    stop.ask()
    with pytest.raises(Stopped, match="nothing has changed"):
        federated(config, wire, tmp_path / "real", stop=stop)
    assert not (tmp_path / "real").exists()


def test_a_run_that_waits_for_clients_can_be_stopped(tmp_path: Path) -> None:
    config, stop = config_of("fedper", "run.flower.wait=600", "train.min_clients=3"), Stop()
    simulated = torso.run(config, tmp_path / "simulated")
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class Leave(Listener):
        """All but one leave, and somebody presses Ctrl-C while they are waited for."""

        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = set(wire.homes) - {"client-0"} if round.round == 2 else set()

    there, looks = wire.there, list[int]()

    def looked() -> dict[int, str]:
        looks.append(len(there()))
        if looks[-3:] == [1, 1, 1]:
            stop.ask()
        return there()

    wire.there = looked  # type: ignore[method-assign]
    with pytest.raises(Stopped, match=r"stopped after round 2 of 4, with a checkpoint. Continue with: .*--resume"):
        federated(config, wire, tmp_path / "real", listener=Leave(), stop=stop)
    wire.absent = set()
    federated(config, wire, tmp_path / "real", resume=True)
    assert_same(tmp_path, "fedper", simulated)


def test_nobody_answers_before_the_first_round(tmp_path: Path) -> None:
    config = config_of("fedncm")
    wire = Wire(homes_of(config, tmp_path / "homes"), lambda _, header: "there" if header.kind == "sums" else "")
    with pytest.raises(NoWorkerLeft, match=r"no client has answered.*stopped after round 0 of 0"):
        federated(config, wire, tmp_path / "real")
    wire.lost = lambda *_: ""
    assert federated(config, wire, tmp_path / "real", resume=True).ok


def test_measures_of_clients_on_the_servers_test_set_are_left_out(tmp_path: Path) -> None:
    """Clients do not have it: they would all refuse such terms."""
    from torso.federation.agreement import server_federation

    config, printed = (
        config_of("fedavg", "train.rounds=1", 'measure.names=["initial","generic","personal"]'),
        list[str](),
    )
    wire = Wire(homes_of(config, tmp_path / "homes"))
    whole = site_data(simulate(config), 0)
    test = lambda agreement: server_federation(whole, agreement, CPU)  # noqa: E731
    found = run_federation(config, wire, tmp_path / "real", say=printed.append, server_data=test)
    assert set(found.accuracy) == {"initial", "generic"}
    assert "personal is not measured: it is taken of clients, on a test set that they do not have" in printed


def test_weights_that_only_the_server_has(tmp_path: Path) -> None:
    """A run begins with those of another: clients are sent them, once, and a restarted one still has them."""
    assert torso.run(config_of("fedavg", "run.seed=3"), tmp_path / "before").ok
    config = config_of("fedbabu", f"model.weights={tmp_path / 'before'}")
    simulated = torso.run(config, tmp_path / "simulated")
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class Restart(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.homes.update(homes_of(config, tmp_path / "homes"))

    assert federated(config, wire, tmp_path / "real", listener=Restart()).ok
    for client, network in simulated.networks(range(5)):
        (path,) = (tmp_path / "homes" / f"client-{client}" / "models").glob("*.safetensors")
        assert sha256(load_file(path)) == sha256(network.contents()), client


def test_a_client_that_has_no_model_yet(tmp_path: Path) -> None:
    config = config_of("fedavg")
    place = tmp_path / "client"
    place.mkdir()
    (place / "federation.toml").touch()
    with pytest.raises(Killed):
        federated(config, Wire(homes_of(config, place)), tmp_path / "real", listener=KillAfter(1))
    assert is_home(place / "client-1")
    with pytest.raises(RequestError, match="holds no model: no run has ended here yet"):
        export_own(place / "client-1", tmp_path / "out")
    assert not (tmp_path / "out").exists()
