"""`torso export` in a federation: on a client's machine its own model, on the server the generic one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.conftest import Torso
from tests.federation.at_home import Wire, homes_of
from tests.federation.test_faults import config_of, federated

import torso as library

pytestmark = pytest.mark.xdist_group("programs")  # torch's exporters and compiler take seconds to load: in one worker


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network whose BatchNorm goes by the batch."""
    folder = tmp_path_factory.mktemp("federation")
    config = config_of("fedavg", "model.body=conv3", "train.rounds=1", "measure.names=initial")
    assert federated(config, Wire(homes_of(config, folder / "homes")), folder / "run").ok
    return folder


def test_a_clients_model_is_calibrated_where_its_samples_are(place: Path, torso: Torso) -> None:
    home = place / "homes" / "client-1"
    done = torso("export", str(home), "--format", "safetensors,torch-export", "--out", "mine", "--json")
    assert done.status == 0, done.err
    assert sorted(path.name for path in Path("mine").iterdir()) == [
        *("README.md", "client-1.pt2", "client-1.safetensors"),
    ]
    net = library.load_model("mine/client-1.safetensors")
    (kept,) = (home / "models").glob("*.safetensors")
    data = homes_of(config_of("fedavg"), place / "others")["client-1"].data
    wanted = library.calibrated(library.load_model(kept), data.train.samples)
    x = net.prepare(data.test.samples)
    assert torch.equal(net(x), wanted(x))
    right = 100 * (net(x).argmax(dim=1).numpy() == data.test.labels).mean()
    (told,) = json.loads(done.out)["calibrated"]
    assert (told["model"], told["samples"]) == ("client-1", len(data.train))
    assert told["after"] == pytest.approx(right)
    assert told["before"] == json.loads(kept.with_suffix(".json").read_text("utf-8"))["accuracy"]["after"]

    assert torso("export", str(home), "--norm", "batch", "--out", "kept").status == 0
    as_it_was = library.load_model("kept/client-1.safetensors")
    assert torch.equal(as_it_was(x), library.load_model(kept)(x))


def test_the_server_says_that_it_has_no_samples(place: Path, torso: Torso) -> None:
    done = torso("export", str(place / "run"), "--out", "generic")
    assert done.status == 0, done.err
    assert "the server has no samples to calibrate it on" in done.out
    net = library.load_model("generic/generic.safetensors")
    assert net.card is not None
    assert net.card.batch_statistics
    assert net.card.class_names == tuple(map(str, range(10)))
    page = Path("generic/README.md").read_text("utf-8")
    assert "BatchNorm of this network has no running statistics" in page
