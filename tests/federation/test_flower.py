"""A real federation on loopback: SuperLink, SuperNodes with TLS and keys, a process for each client.

The models of a run are compared with those of a simulation, by SHA-256: the server's and every client's own."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.federation.absent import absent
from tests.federation.flower import Process, Running, running
from tests.federation.test_bits import sha256
from typer.testing import CliRunner

import torso
from torso import Config
from torso.cli import app
from torso.errors import NoWorkerLeft
from torso.federation.flower.control import traffic
from torso.measure import Accuracy
from torso.nets import Tensors
from torso.results.checkpoint import load_newest
from torso.runs.events import Begin, Listener
from torso.runs.job import simulate
from torso.runs.rounds import Round

pytestmark = pytest.mark.xdist_group("federation")
pytest.importorskip("flwr", reason="the extra flower is not installed")

CLIENTS = 4  # one may leave a secure sum, which is opened for three
# Flower carries bytes, whatever the method; `test_bits.py` compares all methods over the same bytes without it. These
# differ in what is asked: class counts, sums before the first round, others' models. Kept parts, control variates and
# own models are compared below, where somebody is killed
METHODS = ("fedrod-hyper", "fedncm-ft", "fedfomo")
SETS = (
    *(f"data.clients={CLIENTS}", "data.partition=dirichlet-class", "data.alpha=0.5"),
    *("train.rounds=2", "train.fraction=0.5", "train.local_epochs=1", "personalize.epochs=1"),
    *('measure.names=["personalized"]', "run.checkpoint_every=1", "run.workers=1"),
)
PATIENT = ("run.flower.wait=120", "run.flower.deadline=120", f"run.flower.clients={CLIENTS}")


def simulated(method: str, *sets: str) -> Config:
    """With features computed at every look, as clients of a federation do: in other batches the last bits differ."""
    return Config.load(None, [f"method.name={method}", *SETS, "run.engine=one-by-one", "run.features=off", *sets])


@pytest.fixture(scope="module")
def federation(forks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("federation"), simulated("fedavg")) as found:
        yield found


def server_model(folder: Path, config: Config) -> Tensors:
    uploads = config.method.server.keeps_uploads
    found = load_newest(folder / "checkpoints", simulate(config).model, None, uploads=uploads)
    assert found is not None
    return found.server.reported.model


def own_models(federation: Running) -> dict[str, str]:
    """SHA-256 of the newest model of each client."""
    newest = {
        name: max((federation.home(name) / "models").glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for name in federation.clients
    }
    return {name: sha256(load_file(path)) for name, path in newest.items()}


@pytest.mark.parametrize("method", METHODS)
def test_what_was_simulated_is_what_is_deployed(method: str, federation: Running, tmp_path: Path) -> None:
    alone = simulated(method)
    expected = torso.run(alone, tmp_path / "simulated")
    real = federation.run(federation.config.but(f"method.name={method}", *PATIENT), tmp_path / "real")
    assert real.ok
    assert sha256(server_model(tmp_path / "real", alone)) == sha256(server_model(tmp_path / "simulated", alone))
    wanted = {f"client-{k:03d}": sha256(net.contents()) for k, net in expected.networks(range(CLIENTS))}
    assert own_models(federation) == wanted
    assert real.accuracy["personalized"] == expected.accuracy["personalized"]
    assert real.cost == expected.cost


class After(Listener):
    """Do something in another thread when a round is over, while the next one is played."""

    def __init__(self, round: int, work: Callable[[], None]) -> None:
        self.number, self.work = round, work
        self.notes: list[str] = []
        self.thread: threading.Thread | None = None

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.round == self.number:
            self.thread = threading.Thread(target=self.work)
            self.thread.start()

    def note(self, text: str) -> None:
        self.notes.append(text)


class Freeze(After):
    """The same, while some clients stand still: the next round cannot end before that is done."""

    def __init__(self, those: Sequence[Process], round: int, work: Callable[[], None]) -> None:
        super().__init__(round, work)
        self.those = those

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.round == self.number:
            for client in self.those:
                client.child.send_signal(signal.SIGSTOP)
        super().round(round, seconds, accuracy)


ROUNDS = ("train.rounds=3", "train.fraction=1.0")


def absences(folder: Path) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Who was asked in each round and has not answered, and who was not there: back a little late, on a busy day."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    silent = {line["round"]: set(line.get("missing", ())) for line in lines}
    away = {line["round"]: set(range(CLIENTS)) - {*line["participants"], *line.get("missing", ())} for line in lines}
    return silent, away


def again(alone: Config, tmp_path: Path) -> torso.Result:
    """The simulation in which the same clients were absent in the same rounds as in `tmp_path / "real"`."""
    return torso.run(alone, tmp_path / "simulated", engine=absent(*absences(tmp_path / "real")))


def check(federation: Running, tmp_path: Path, alone: Config, expected: torso.Result) -> None:
    """The models of `tmp_path / "real"` are those of a simulated run."""
    assert sha256(server_model(tmp_path / "real", alone)) == sha256(server_model(tmp_path / "simulated", alone))
    wanted = {f"client-{k:03d}": sha256(net.contents()) for k, net in expected.networks(range(CLIENTS))}
    assert own_models(federation) == wanted


def test_a_server_that_sees_sums_only(federation: Running, tmp_path: Path) -> None:
    """Secure sums over the wire. One client shares its secrets and cannot finish the round: its masks are taken off,
    and the model is that of a simulation without it, up to rounding."""
    sets = ("train.rounds=1", "train.fraction=1.0", "train.min_clients=3", "measure.names=[]")
    runs = federation.home("client-003") / "runs"

    class InTheWay(After):
        def begin(self, begin: Begin) -> None:
            newest = max(runs.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            (newest / "round-000001.safetensors").mkdir()

    listener = InTheWay(0, lambda: None)
    secure = federation.config.but("method.name=fedbabu", *sets, *PATIENT, "run.flower.secure.kind=secagg+")
    assert federation.run(secure, tmp_path / "real", listener=listener).ok
    assert any("client-003 has not answered" in note for note in listener.notes)
    assert absences(tmp_path / "real")[0] == {1: {3}}
    alone = simulated("fedbabu", *sets)
    again(alone, tmp_path)
    plain, found = (server_model(tmp_path / name, alone) for name in ("simulated", "real"))
    for name, tensor in plain.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4, msg=name)
    assert "masked: the server can open the sum over the participants" in federation.clients["client-001"].printed


@pytest.mark.parametrize(("method", "victims"), [("fedrep", [2]), ("scaffold", [0, 1])])
def test_clients_that_are_killed_in_mid_round(
    method: str, victims: list[int], federation: Running, tmp_path: Path
) -> None:
    alone = simulated(method, *ROUNDS)
    those = [federation.clients[f"client-{k:03d}"] for k in victims]
    others = [client for client in federation.clients.values() if client not in those]
    before = [client.printed.count("round 2: trained") for client in others]

    def strike() -> None:
        """They have the message and do nothing about it; when all others have answered, they die, and come back."""
        for client, done in zip(others, before, strict=True):
            client.wait_for("round 2: trained", done + 1)
        for client in those:
            client.kill()
            client.start()

    listener = Freeze(those, 1, strike)
    real = federation.run(
        federation.config.but(f"method.name={method}", *ROUNDS, *PATIENT), tmp_path / "real", listener=listener
    )
    assert real.ok
    assert sum("has not answered" in note for note in listener.notes) == len(victims)
    silent, _ = absences(tmp_path / "real")
    assert silent == {1: set(), 2: set(victims), 3: set()}
    expected = again(alone, tmp_path)
    for client in those:
        client.wait_for("is connected", 2)
    federation.run(federation.config.but(f"method.name={method}", *ROUNDS, *PATIENT), tmp_path / "real", resume=True)
    check(federation, tmp_path, alone, expected)


def test_a_server_that_is_killed_in_mid_round(federation: Running, tmp_path: Path) -> None:
    alone = simulated("ditto", *ROUNDS)
    client, still = federation.clients["client-001"], federation.clients["client-002"]
    done = client.printed.count("round 2: training")

    def strike() -> None:
        client.wait_for("round 2: training", done + 1)
        federation.server.kill()
        still.child.send_signal(signal.SIGCONT)

    config = federation.config.but("method.name=ditto", *ROUNDS, *PATIENT)
    with pytest.raises(NoWorkerLeft, match=r"stopped after round 1 of 3, with a checkpoint.*--resume"):
        federation.run(config, tmp_path / "real", listener=Freeze([still], 1, strike))
    federation.server.start()
    federation.server.wait_for("TLS and authentication of clients are on", 2)
    real = federation.run(config, tmp_path / "real", resume=True)
    assert real.ok
    federation.run(config, tmp_path / "real", resume=True)  # a model for who was not back in time
    check(federation, tmp_path, alone, again(alone, tmp_path))


def test_a_run_that_is_killed_in_mid_round(federation: Running, tmp_path: Path) -> None:
    alone = simulated("feddyn", *ROUNDS)
    config = federation.config.but("method.name=feddyn", *ROUNDS, *PATIENT)
    (tmp_path / "config.toml").write_text(config.as_toml())
    words = ["federation", "run", tmp_path / "config.toml", "--at", federation.place.path, "--out", tmp_path / "real"]
    command = Process(list(map(str, words)), tmp_path / "run.log")
    command.wait_for("round 1/3")
    command.kill()
    real = federation.run(config, tmp_path / "real", resume=True)
    assert real.ok
    federation.run(config, tmp_path / "real", resume=True)  # a model for who was not back in time
    check(federation, tmp_path, alone, again(alone, tmp_path))


def test_a_client_whose_disk_is_full(federation: Running, tmp_path: Path) -> None:
    """Its disk takes what it holds after one round, and not what it needs beside that to go on."""
    alone = simulated("ditto", *ROUNDS)
    expected = torso.run(alone, tmp_path / "simulated", engine=absent({2: {2}, 3: {2}}))
    small = federation.home("client-002") / "runs"
    small.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("no small disk can be made here: " + mounted.stderr.decode().strip())
    listener = After(0, lambda: None)
    try:
        config = federation.config.but("method.name=ditto", *ROUNDS, *PATIENT)
        real = federation.run(config, tmp_path / "real", listener=listener)
    finally:
        subprocess.run(["umount", "-l", small], check=True)
    assert real.ok
    assert sum("client-002 has not answered" in note and "No space left" in note for note in listener.notes) == 2
    check(federation, tmp_path, alone, expected)


def test_the_command_line_of_a_federation(federation: Running, tmp_path: Path) -> None:
    """A person sees who is there, runs, finds the models, and takes one out, on both sides."""
    runner = CliRunner()
    place, home = federation.place.path, federation.home("client-001")

    def torso_(*words: object) -> str:
        result = runner.invoke(app, ["federation", *map(str, words)])
        assert result.exit_code == 0, result.output
        return result.stdout

    rows = json.loads(torso_("status", place, "--json"))
    assert [(row["name"], row["state"], row["classes"]) for row in rows] == [
        (name, "online", 10) for name in federation.clients
    ]
    out, test = tmp_path / "real", federation.folder / "split" / "test.npz"
    sets = [word for text in ("method.name=fedbabu", 'measure.names=["generic"]', *PATIENT) for word in ("--set", text)]
    found = json.loads(torso_("run", place, "--out", out, "--test", test, "--json", "--quiet", *sets))
    alone = torso.run(simulated("fedbabu", 'measure.names=["generic"]'), tmp_path / "simulated")
    assert found["accuracy"]["generic"]["mean"] == alone.accuracy["generic"].mean  # on the very same test set
    models = json.loads(torso_("models", home.parent, "--json"))
    assert models[-1]["method"] == "fedbabu"
    assert models[-1]["classes"] == [str(number) for number in range(10)]
    for folder, name in ((home, "client-001"), (out, "generic")):
        result = runner.invoke(app, ["export", str(folder), "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        net = torso.load_model(tmp_path / name / f"{name}.safetensors")
        assert net.card is not None
        assert "0, 1, 2" in (tmp_path / name / "README.md").read_text()
    assert runner.invoke(app, ["report", str(out), "--out", str(tmp_path / "page.html")]).exit_code == 0


def test_bytes_on_the_wire_are_those_that_are_counted(federation: Running, tmp_path: Path) -> None:
    """What goes over the clients' connections for rounds is the cost, within 5 % and 12 kB a message: Flower's headers,
    signatures and object numbers. Looks for messages that are not there are not counted: they depend on the time."""

    def carried() -> int:
        found = traffic(federation.place)
        return sum(one.received + one.sent for path, one in found.items() if path.rpartition("/")[2] in CARRIES)

    class Count(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            seen.append((carried(), round.cost.bytes_up + round.cost.bytes_down))

    seen: list[tuple[int, int]] = []
    two = ("train.rounds=2", "train.fraction=1.0", "measure.names=[]")
    assert federation.run(
        federation.config.but("method.name=scaffold", *two, *PATIENT), tmp_path / "real", listener=Count()
    ).ok
    (first, cost), (last, cost_then) = seen
    assert 0 < cost_then - cost <= last - first <= 1.05 * (cost_then - cost) + 12_000 * 2 * CLIENTS


CARRIES = ("pull-object", "push-object", "push-messages", "confirm-message-received")
