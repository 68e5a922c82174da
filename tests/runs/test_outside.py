"""A run with a body of another library: what it says, its folder, its models, a resumed run, and a real federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.at_home import Wire, homes_of
from tests.federation.test_bits import sha256
from tests.nets.test_zoo import library
from tests.runs import samples

import torso
from torso import Config, Result
from torso.data.inputs import Pixels
from torso.federation.client_service import ClientService
from torso.federation.run import run_federation
from torso.runs.run import Stopped

BODY = "timm/test_resnet"
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)  # of the test networks of timm
SETS = (
    *("data.source=synthetic", "data.synthetic.samples=60", "data.synthetic.test_samples=30", "data.partition=iid"),
    *("data.clients=3", "data.size=16", "train.rounds=2", "train.fraction=0.6", "run.engine=one-by-one"),
)
REAL = ("run.flower.clients=3", "run.flower.wait=2")


def config(weights: Path, method: str = "fedper", *sets: str) -> Config:
    return samples.tiny(method, *SETS, f"model.body={BODY}", f"model.weights={weights}", *sets)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "theirs.pth"
    torch.save({"model": library("timm").create_model("test_resnet").state_dict()}, path)
    return path


@pytest.fixture(scope="module")
def done(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[str]]:
    heard = samples.Heard()
    folder = tmp_path_factory.mktemp("runs") / "run"
    return torso.run(config(weights), folder, listener=heard), heard.notes


def test_the_run_says_what_it_has_done_for_the_body(done: tuple[Result, list[str]], weights: Path) -> None:
    assert done[1] == [
        f"model.weights = '{weights}': the head of the pre-training (fc.bias, fc.weight) is left out",
        "images of 16×16 with 1 channel are converted from grey to three equal channels and normalised as "
        f"model.body = {BODY!r} expects",
        "train.lr = 0.01 is the default with pre-trained weights",
        f"model.body = {BODY!r} is computed one client at a time: its BatchNorm layers are not Torso's own and would "
        "count padding",
    ]


def test_the_folder_gives_the_same_models_again(done: tuple[Result, list[str]], tmp_path: Path) -> None:
    result, _ = done
    assert result.folder is not None
    again = torso.load(result.folder)
    mine, same = result.network(0), again.network(0)
    assert sha256(mine.contents()) == sha256(same.contents())
    assert mine.input == Pixels(3, 16, 16, MEAN, STD)
    torso.save_model(same, tmp_path / "mine.safetensors")
    read = torso.load_model(tmp_path / "mine.safetensors")
    x = mine.input.example(2)
    with torch.no_grad():
        assert torch.equal(read(x), mine.eval()(x))
    said = torso.predict(tmp_path / "mine.safetensors", np.zeros((2, 40, 30), np.uint8))
    assert "resized to 16×16" in " ".join(said.remarks)


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(
    done: tuple[Result, list[str]], weights: Path, tmp_path: Path
) -> None:
    stopper = samples.StopAfter(1)
    own = tmp_path / "own.pth"
    own.write_bytes(weights.read_bytes())
    asked = config(own)
    with pytest.raises(Stopped):
        torso.run(asked, tmp_path / "run", listener=stopper, stop=stopper.stop)
    assert torso.run(asked, tmp_path / "run", resume=True).ok
    assert done[0].folder is not None
    assert samples.same_tensors(samples.last_tensors(tmp_path / "run"), samples.last_tensors(done[0].folder))


def small_homes(asked: Config, folder: Path) -> Mapping[str, ClientService]:
    """The clients with their images as their files have them: grey, 8×8, and those of client-1 in colour."""
    plain = asked.but("model.body=mlp", "model.weights=", "data.size=0")
    homes = homes_of(plain, folder)
    data = homes["client-1"].data
    parts = {
        n: replace(p, images=np.repeat(p.images, 3, axis=3)) for n, p in (("train", data.train), ("test", data.test))
    }
    colour = replace(data, **parts, input=Pixels(3, 8, 8))
    return {
        **homes,
        "client-1": ClientService("client-1", colour, folder / "client-1", torch.device("cpu"), say=lambda _: None),
    }


def test_a_federation_fits_its_clients_images_and_is_the_simulation_to_the_bit(
    done: tuple[Result, list[str]], weights: Path, tmp_path: Path
) -> None:
    asked, said = config(weights).but(*REAL), list[str]()
    found = run_federation(asked, Wire(small_homes(asked, tmp_path / "homes")), tmp_path / "real", say=said.append)
    assert found.ok
    for client, network in done[0].networks(range(3)):
        (path,) = (tmp_path / "homes" / f"client-{client}" / "models").glob("*.safetensors")
        assert sha256(load_file(path)) == sha256(network.contents()), client
