"""The clients of a simulation as files: read where they lie and agreed on, they are the simulation to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from tests.runs.samples import assert_same_state, tiny
from tests.runs.test_site import ByBytes

from torso import Config, RequestError
from torso.data import Federation, load
from torso.engine import Engine, OneByOne
from torso.federation.agreement import Agreement, agree, server_federation, site_federation
from torso.federation.site_data import SiteData, read_site, read_test
from torso.federation.split import split
from torso.personal.state import State
from torso.personal.store import Store
from torso.runs.job import data_of, prepare, simulate
from torso.runs.rounds import play_round
from torso.runs.site import Site

CPU = torch.device("cpu")
DIRICHLET = ("data.partition=dirichlet-class", "data.alpha=0.3", "train.fraction=0.5", "run.engine=one-by-one")
METHODS = (
    *("fedavg", "fedbabu", "scaffold", "fedper", "fedrep", "feddyn", "ditto", "pfedme", "fedfn", "mtl", "fedfomo"),
    *("fedrod-linear", "fedrod-hyper", "per-fedavg"),
)


def read_back(paths: list[Path], config: Config) -> tuple[dict[str, SiteData], Agreement]:
    """What the clients of a federation read, tell and agree on; told in an order of its own."""
    sites = {path.stem: read_site(path, config.data, path.stem) for path in paths}
    told = [(site.description(name), site.moments) for name, site in reversed(sites.items())]
    return sites, agree(told, config.data)


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_of_split_files_is_the_simulation_to_the_bit(method: str, tmp_path: Path) -> None:
    task = simulate(tiny(method, *DIRICHLET))
    paths = split(task.config, tmp_path / "split")
    config = Config.load(tmp_path / "split" / "config.toml")
    data, agreement = read_back(paths, config)
    assert not agreement.refused
    assert agreement.names == tuple(path.stem for path in paths)
    job = prepare(config.but("measure.names=initial"), agreement.roster)
    sites = {}
    for k, name in enumerate(agreement.names):
        own = Agreement.model_validate_json(agreement.seen_by(k).model_dump_json())
        sites[k] = Site(job, site_federation(data[name], own, k, CPU), k)
    apart = ByBytes(sites)
    simulated = real = State.begin(task.model)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        for _ in range(2):
            simulated, _ = play_round(task.plan[0], simulated, task.roster, engine, 0)
            real, _ = play_round(job.plan[0], real, job.roster, cast(Engine, apart), 0)
    assert_same_state(replace(real, clients=Store(apart.held)), simulated)


def assert_same_data(federation: Federation, data: dict[str, SiteData], agreement: Agreement) -> None:
    """Every client's arrays in their order, their dtypes, and all that the network sees of the data."""
    assert agreement.clients == federation.clients
    for k, name in enumerate(agreement.names):
        mine, theirs = site_federation(data[name], agreement, k, CPU), federation.at_site(k)
        meta = len(theirs.meta_rows)
        assert (mine.input, mine.classes, mine.augment) == (theirs.input, theirs.classes, theirs.augment)
        for part in ("train", "test"):
            found, wanted = getattr(mine, part), getattr(theirs, part)
            count = len(wanted.labels) - (meta if part == "train" else 0)
            assert found.samples.dtype == wanted.samples.dtype
            assert torch.equal(found.samples, wanted.samples[:count])
            assert torch.equal(found.labels, wanted.labels[:count])
            assert torch.equal(found.order, wanted.order)
            assert found.offsets.tolist() == wanted.offsets.tolist()


def write_table(path: Path) -> None:
    rng = np.random.default_rng(0)
    towns = np.array(["Rome", "Oslo", "Bonn"])[rng.integers(0, 3, 90)]
    rows = zip(rng.normal(3, 2, 90), towns, np.array(["10", "9", "sick"])[np.arange(90) % 3], strict=True)
    path.write_text(
        "age,town,label,hospital\n" + "".join(f"{a:.4f},{t},{c},{i % 12}\n" for i, (a, t, c) in enumerate(rows))
    )


def write_tokens(path: Path) -> None:
    rng = np.random.default_rng(0)
    masks = {f"{part}_mask": (rng.random((40, 6)) < 0.7).astype(np.int64) for part in ("train", "test")}
    ids = {f"{part}_samples": rng.integers(0, 30, (40, 6)) for part in ("train", "test")}
    np.savez(path, **masks, **ids, train_labels=np.arange(40) % 4, test_labels=np.arange(40) % 4)


@pytest.mark.parametrize(
    "sets",
    [
        ("data.partition=shards",),
        ("data.partition=dirichlet-class", "data.alpha=0.05", "data.clients=60"),  # some have nothing to test on
        ("data.validation=0.25", "data.normalize=statistics"),
        ("data.source=synthetic", "data.synthetic.channels=3", "data.clients=12", "data.shards=5", "data.augment=flip"),
        (
            "data.source=csv",
            "data.root=table.csv",
            "data.csv.client=hospital",
            "data.partition=by-client",
            "data.clients=0",
        ),
        ("data.source=npz", "data.root=tokens.npz", "data.partition=iid", "model.body=embedding-mean"),
    ],
)
def test_every_client_gets_back_what_it_had(
    sets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "table.csv")
    write_tokens(tmp_path / "tokens.npz")
    asked = tiny("fedavg", *sets)
    federation = data_of(asked)
    paths = split(asked, "split")
    config = Config.load("split/config.toml")
    data, agreement = read_back(paths, config)
    assert_same_data(federation, data, agreement)
    whole = load(config.data.model_copy(update={"root": str(paths[0])}), 0) if len(data[paths[0].stem].test) else None
    if whole is not None:  # the npz source of a simulation reads a client's file, too
        assert whole.train.samples.tolist() == data[paths[0].stem].train.samples.tolist()
        assert whole.name == federation.name
    server = server_federation(read_test("split/test.npz", config.data), agreement, CPU)
    assert torch.equal(server.test.samples, federation.test.samples)
    assert torch.equal(server.test.labels, federation.test.labels)
    assert torch.equal(server.test_order, federation.test_order)
    assert (server.roster.test_samples, server.roster.samples) == (federation.roster.test_samples, 0)


def test_classes_and_clients_whose_order_a_federation_would_change_carry_their_number(tmp_path: Path) -> None:
    from torso.federation.split import _class_names, _client_names

    assert _class_names(["cat", "dog"]) == ["cat", "dog"]
    assert _class_names(["1", "10", "2"]) == ["0 1", "1 10", "2 2"]
    assert _client_names(["f2", "f10"]) == ["f2", "f10"]
    assert _client_names(["f10", "f2"]) == ["000-f10", "001-f2"]
    assert _client_names(["a b", "Zoë"]) == ["000-a-b", "001-Zo-"]
    assert _client_names(["ann", "test"]) == ["000-ann", "001-test"]
    assert _client_names([""] * 2) == ["client-000", "client-001"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["data.server_fraction=0.1"], r"data\.server_fraction = 0\.1: the server of a federation has no training"),
        (["data.new_clients=2"], r"data\.new_clients = 2: newcomers of a federation are those that join later"),
        (
            ["attack.kind=label-poisoning"],
            r"attack\.kind = label-poisoning: attacks are simulated only\. Accepted: none",
        ),
        (["method.name=fedavg-meta"], r"has the server give samples to everybody \(data\.meta_per_class\)"),
    ],
)
def test_what_a_federation_has_not_is_refused_by_key(sets: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        split(tiny().but(*sets), tmp_path / "split")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_no_half_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "split"
    out.mkdir()
    assert len(split(tiny(), out)) == 10  # an empty folder is no loss
    before = sorted(out.iterdir())
    with pytest.raises(RequestError, match="exists and is not empty"):
        split(tiny("fedbabu"), out)
    assert sorted(out.iterdir()) == before

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(RequestError, match="No space left"):
        split(tiny(), tmp_path / "other")
    assert list(tmp_path.iterdir()) == [out]
