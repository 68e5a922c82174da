"""What was simulated is what is deployed, to the bit: the same models on the server and at every client."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from safetensors.torch import load_file, save
from tests.federation.at_home import Wire, homes_of
from tests.runs.samples import tiny

import torso
from torso.federation.run import run_federation
from torso.nets import Tensors
from torso.results.checkpoint import load_newest
from torso.runs.job import simulate

METHODS = (
    *("fedproto", "fedpac", "fedas", "feddbe", "pfedfda", "creff"),
    *("fedavg", "fedbabu", "fedper", "fedrep", "scaffold", "feddyn", "ditto", "pfedme", "fedfomo", "mtl", "fedexp"),
    *("fedamp", "fedthe", "fedloge", "gpfl"),
    *("fedrod-linear", "fedrod-hyper", "fedncm", "fedncm-ft", "fedfn", "per-fedavg", "lg-fedavg", "local-only"),
    *("moon", "mofedsam"),
)
CLIENTS = 5
SETS = (
    *(f"data.clients={CLIENTS}", "data.partition=dirichlet-class", "data.alpha=0.5"),
    *("train.fraction=0.6", "train.rounds=3"),
)


def sha256(tensors: Tensors) -> str:
    return hashlib.sha256(save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})).hexdigest()


def checkpoint(folder: Path, method: str, *sets: str) -> Tensors:
    """The model that accuracy was reported on at the end of a run."""
    task = simulate(tiny(method, *(sets or SETS)))
    found = load_newest(folder / "checkpoints", task.model, None, uploads=task.config.method.server.keeps_uploads)
    assert found is not None
    return found.server.reported.model


@pytest.mark.parametrize("method", METHODS)
def test_models_are_those_of_the_simulation(method: str, tmp_path: Path) -> None:
    config = tiny(method, *SETS, "run.engine=one-by-one", "run.features=off")  # as clients at home compute
    simulated = torso.run(config, tmp_path / "simulated")
    homes = homes_of(config, tmp_path / "homes")
    wire = Wire(homes)
    real = run_federation(config.but(f"run.flower.clients={CLIENTS}"), wire, tmp_path / "real", say=lambda _: None)
    assert real.ok
    assert sha256(checkpoint(tmp_path / "real", method)) == sha256(checkpoint(tmp_path / "simulated", method))
    for client, network in simulated.networks(range(len(homes))):
        (path,) = (tmp_path / "homes" / f"client-{client}" / "models").glob("*.safetensors")
        assert sha256(load_file(path)) == sha256(network.contents()), client
    for name, found in real.accuracy.items():
        if name != "generic":  # there, of the clients' test data
            assert found == simulated.accuracy[name]
    assert real.cost == simulated.cost


def test_without_a_test_set_of_the_servers_the_clients_test_data_are_pooled(tmp_path: Path) -> None:
    """FedAvg's clients all hold the generic model: its accuracy is theirs, weighed by their test samples."""
    config = tiny("fedavg", *SETS, f"run.flower.clients={CLIENTS}")
    real = run_federation(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", say=lambda _: None)
    sizes = simulate(config).federation.test.sizes
    found = [(share, size) for share, size in zip(real.accuracy["initial"].clients, sizes, strict=True) if size]
    pooled = sum((share or 0.0) * size for share, size in found) / sum(size for _, size in found)
    assert real.accuracy["generic"].mean == pytest.approx(pooled, abs=1e-5)
    assert real.accuracy["generic"].clients == ()


@pytest.mark.parametrize("rule", ["krum", "geometric-median", "centred-clipping"])
def test_a_rule_on_single_uploads_gives_the_bits_of_the_simulation(rule: str, tmp_path: Path) -> None:
    """Replies come in another order there, and the server's sums have more threads."""
    sets = (*SETS, "train.fraction=1.0", f"method.server={rule}", "method.server.clip=1.0", "measure.names=generic")
    config = tiny("fedbabu", *sets, "run.engine=one-by-one")
    assert torso.run(config, tmp_path / "simulated").ok
    wire = Wire(homes_of(config, tmp_path / "homes"))
    assert run_federation(config.but(f"run.flower.clients={CLIENTS}"), wire, tmp_path / "real", say=lambda _: None).ok
    real, simulated = (sha256(checkpoint(tmp_path / name, "fedbabu", *sets)) for name in ("real", "simulated"))
    assert real == simulated
