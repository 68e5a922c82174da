"""A real federation on loopback: SuperLink, SuperNodes with TLS and keys, a process for each client.

The models of a run are compared with those of a simulation, by SHA-256: the server's and every client's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.federation.flower import Running, running
from tests.federation.test_bits import sha256

import torso
from torso import Config
from torso.nets import Tensors
from torso.results.checkpoint import load_newest
from torso.runs.job import simulate

pytestmark = pytest.mark.xdist_group("federation")
pytest.importorskip("flwr", reason="the extra flower is not installed")

CLIENTS = 5
METHODS = (
    *("fedavg", "fedbabu", "fedper", "fedrep", "scaffold", "feddyn", "ditto", "pfedme", "fedrod-linear"),
    *("fedrod-hyper", "fedncm", "fedncm-ft", "fedfn", "mtl", "fedfomo"),
)
SETS = (
    *(f"data.clients={CLIENTS}", "data.partition=dirichlet-class", "data.alpha=0.5"),
    *("train.rounds=2", "train.fraction=0.8", "train.local_epochs=1", "personalize.epochs=1"),
    *('measure.names=["personalized"]', "run.checkpoint_every=1", "run.workers=1"),
)
PATIENT = ("run.flower.wait=120", "run.flower.deadline=120", f"run.flower.clients={CLIENTS}")


def simulated(method: str, *sets: str) -> Config:
    return Config.load(None, [f"method.name={method}", *SETS, "run.engine=one-by-one", *sets])


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
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
