"""Whatever breaks, the models are those of a run in which the same clients were absent in the same rounds."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.federation.absent import absent
from tests.federation.at_home import CPU, Wire, homes_of, site_data
from tests.federation.test_bits import checkpoint, sha256
from tests.runs.samples import tiny

import torso
from torso import Config
from torso.data.images import Images
from torso.errors import NoWorkerLeft
from torso.federation.client_service import ClientService
from torso.federation.protocol import RequestHeader
from torso.federation.run import run_federation
from torso.federation.versions import ClientStateFiles
from torso.measure import Accuracy
from torso.runs.events import Listener
from torso.runs.job import simulate
from torso.runs.rounds import Round

METHODS = ("fedavg", "fedper", "scaffold", "feddyn", "ditto", "fedrep", "mtl", "fedfomo", "fedrod-hyper", "lg-fedavg")
SETS = ("data.partition=dirichlet-class", "data.alpha=0.5", "data.clients=5", "train.fraction=1.0", "train.rounds=4")
SILENT = {1: {2: "there"}, 2: {0: "back", 3: "there"}, 4: {2: "back"}}
"""Where the messages of a client are lost, by round and client."""


def config_of(method: str, *sets: str) -> Config:
    return tiny(method, *SETS, "run.engine=one-by-one", "run.flower.clients=5", "run.flower.wait=2", *sets)


def federated(config: Config, wire: Wire, out: Path, **more: Any) -> torso.Result:
    return run_federation(config, wire, out, say=lambda _: None, **more)


def assert_same(tmp_path: Path, method: str, simulated: torso.Result, real: str = "real") -> None:
    assert sha256(checkpoint(tmp_path / real, method, *SETS)) == sha256(
        checkpoint(tmp_path / "simulated", method, *SETS)
    )
    for client, network in simulated.networks(range(5)):
        (path,) = (tmp_path / "homes" / f"client-{client}" / "models").glob("*.safetensors")
        assert sha256(load_file(path)) == sha256(network.contents()), client


@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_is_lost_makes_its_client_absent(method: str, tmp_path: Path) -> None:
    """On the way there, or the reply on its way back: then what the client has learned does not count, neither on the
    server nor at home."""

    def lost(name: str, header: RequestHeader) -> str:
        client = int(name.removeprefix("client-"))
        return SILENT.get(header.round, {}).get(client, "") if header.kind == "told" else ""

    config = config_of(method)
    silent = {round: set(clients) for round, clients in SILENT.items()}
    simulated = torso.run(config, tmp_path / "simulated", engine=absent(silent))
    real = federated(config, Wire(homes_of(config, tmp_path / "homes"), lost), tmp_path / "real")
    assert real.ok
    assert_same(tmp_path, method, simulated)
    lines = map(json.loads, (tmp_path / "real" / "history.jsonl").read_text().splitlines())
    assert {line["round"]: set(line.get("missing", ())) for line in lines} == {
        1: {2},
        2: {0, 3},
        3: set(),
        4: {2},
        **({5: set()} if method == "lg-fedavg" else {}),
    }


def test_participants_are_drawn_from_those_who_are_there(tmp_path: Path) -> None:
    away = {2: {1, 4}, 3: {1}}
    config = config_of("scaffold", "train.fraction=0.6")
    simulated = torso.run(config, tmp_path / "simulated", engine=absent({}, away))
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class ComeAndGo(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {f"client-{client}" for client in away.get(round.round + 1, ())}

    federated(config, wire, tmp_path / "real", listener=ComeAndGo())
    assert_same(tmp_path, "scaffold", simulated)


class Killed(Exception):
    pass


class KillAfter(Listener):
    def __init__(self, round: int) -> None:
        self.last = round

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.round == self.last:
            raise Killed


@pytest.mark.parametrize(
    ("method", "every"), [("fedper", 1), ("fedper", 2), ("fedper", 3), ("scaffold", 2), ("ditto", 2), ("mtl", 2)]
)
def test_a_server_that_was_killed_goes_on_from_its_checkpoint(method: str, every: int, tmp_path: Path) -> None:
    """Its clients have gone further than the checkpoint, and some of them were restarted: they go back with it."""
    config = config_of(method, f"run.checkpoint_every={every}")
    simulated = torso.run(config, tmp_path / "simulated")
    with pytest.raises(Killed):
        federated(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", listener=KillAfter(3))
    federated(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", resume=True)
    assert_same(tmp_path, method, simulated)


@pytest.mark.parametrize("method", ["fedrep", "feddyn", "fedfomo"])
def test_what_a_client_holds_survives_its_restart(method: str, tmp_path: Path) -> None:
    config = config_of(method)
    simulated = torso.run(config, tmp_path / "simulated")
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class Restart(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.homes.update(homes_of(config, tmp_path / "homes"))

    federated(config, wire, tmp_path / "real", listener=Restart())
    assert_same(tmp_path, method, simulated)


def test_a_round_that_too_few_answer_is_played_again(tmp_path: Path) -> None:
    tries: list[str] = []

    def lost(name: str, header: RequestHeader) -> str:
        if header.kind != "told" or header.round != 2 or name == "client-0":
            return ""
        tries.append(name)
        return "back" if tries.count(name) < 3 else ""

    config = config_of("fedper", "train.min_clients=3")
    simulated = torso.run(config, tmp_path / "simulated")
    real = federated(config, Wire(homes_of(config, tmp_path / "homes"), lost), tmp_path / "real")
    assert_same(tmp_path, "fedper", simulated)
    assert len(tries) == 12
    assert real.cost == simulated.cost  # of rounds that have happened


def test_without_enough_clients_the_run_waits_and_can_be_resumed(tmp_path: Path) -> None:
    config = config_of("fedper", "train.min_clients=3", "run.flower.wait=0.5")
    simulated = torso.run(config, tmp_path / "simulated")
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class Leave(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {"client-1", "client-2", "client-4"} if round.round == 2 else set()

    with pytest.raises(
        NoWorkerLeft, match=r"2 clients are there and train.min_clients = 3.*torso federation run .*--resume"
    ):
        federated(config, wire, tmp_path / "real", listener=Leave())
    wire.absent = set()
    federated(config, wire, tmp_path / "real", resume=True)
    assert_same(tmp_path, "fedper", simulated)


def test_a_client_whose_disk_is_full_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = {(2, "client-3"), (3, "client-3")}
    write = ClientStateFiles.save

    def save(self: ClientStateFiles, round: int, state: Any) -> None:
        if (round, self.folder.parts[-3]) in full:
            from torso.federation import versions

            def no_space(*_: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            with monkeypatch.context() as patch:
                patch.setattr(versions, "replace_file", no_space)
                write(self, round, state)
        write(self, round, state)

    monkeypatch.setattr(ClientStateFiles, "save", save)
    printed: list[str] = []
    config = config_of("fedrep")
    simulated = torso.run(config, tmp_path / "simulated", engine=absent({2: {3}, 3: {3}}))

    class Notes(Listener):
        def note(self, text: str) -> None:
            printed.append(text)

    federated(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", listener=Notes())
    assert_same(tmp_path, "fedrep", simulated)
    assert sum("client-3 has not answered" in text and "No space left" in text for text in printed) == 2


def test_who_comes_later_gets_what_a_newcomer_gets(tmp_path: Path) -> None:
    config = config_of("fedrod-hyper")
    simulated = torso.run(config, tmp_path / "simulated")
    homes = homes_of(config, tmp_path / "homes")
    wire = Wire(homes)
    late = site_data(simulate(config_of("fedrod-hyper", "run.seed=7")), 2)

    class Come(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            if round.round == 2:
                home = ClientService("late", late, tmp_path / "homes" / "late", CPU, say=lambda _: None)
                wire.homes["late"] = home

    federated(config, wire, tmp_path / "real", listener=Come())
    assert_same(tmp_path, "fedrod-hyper", simulated)
    (path,) = (tmp_path / "homes" / "late" / "models").glob("*.safetensors")
    wanted = simulated.newcomer(late.train.samples, late.train.labels)
    assert sha256(load_file(path)) == sha256(wanted.contents())
    told = [header.kind for name, header in wire.asked if name == "late"]
    assert told == ["who", "agree", "finish"]


def test_who_comes_later_does_not_stand_in_for_one_who_trains(tmp_path: Path) -> None:
    config = config_of("fedbabu", "train.min_clients=3", "run.flower.wait=0.5")
    wire = Wire(homes_of(config, tmp_path / "homes"))
    late = site_data(simulate(config_of("fedbabu", "run.seed=7")), 2)

    class TakeTurns(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {"client-1", "client-2", "client-4"}
            wire.homes["late"] = ClientService("late", late, tmp_path / "homes" / "late", CPU, say=lambda _: None)

    with pytest.raises(NoWorkerLeft, match=r"2 clients are there and train.min_clients = 3"):
        federated(config, wire, tmp_path / "real", listener=TakeTurns())


def test_who_comes_back_with_other_data_is_refused(tmp_path: Path) -> None:
    config, printed = config_of("fedper"), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    data = wire.homes["client-1"].data
    other = replace(data, train=Images(data.train.samples, data.train.labels[::-1].copy()))

    class Swap(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {"client-1"} if round.round == 1 else set()
            wire.homes["client-1"] = ClientService(
                "client-1", other, tmp_path / "homes" / "client-1", CPU, say=printed.append
            )

    real = run_federation(config, wire, tmp_path / "real", say=printed.append, listener=Swap())
    assert real.ok
    assert any(text.startswith("client-1 is refused: its data are not those that it began") for text in printed)
    assert any(text.startswith("refused: its data are not those that it began") for text in printed)
    lines = map(json.loads, (tmp_path / "real" / "history.jsonl").read_text().splitlines())
    assert [1 in line["participants"] for line in lines] == [True, False, False, False]


def test_who_was_not_there_at_the_end_gets_its_model_later(tmp_path: Path) -> None:
    config, notes = config_of("fedbabu"), list[str]()
    simulated = torso.run(config, tmp_path / "simulated", engine=absent({}, {4: {1}}))
    wire = Wire(homes_of(config, tmp_path / "homes"))

    class Leave(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.absent = {"client-1"} if round.round == 3 else wire.absent

        def note(self, text: str) -> None:
            notes.append(text)

    first = federated(config, wire, tmp_path / "real", listener=Leave())
    assert notes.count("client-1 is not there") == 1  # of several measures
    assert first.accuracy["personalized"].clients[1] is None
    assert not (tmp_path / "homes" / "client-1" / "models").exists()
    wire.absent = set()
    federated(config, wire, tmp_path / "real", resume=True)
    assert_same(tmp_path, "fedbabu", simulated)
