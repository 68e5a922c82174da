"""FedTHE's models that leave a run mix their heads for each sample, in every format, and say so (spec 19.22)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runs.samples import digits, tiny
from torch import Tensor

import torso
from torso import Result, load_model, predict, save_model
from torso.measure.head_ensemble import HeadEnsemble, mixed_answer
from torso.nets import Network, Output
from torso.nets.dual import DualHead
from torso.nets.layers import Linear
from torso.results.export import ExportOptions, export
from torso.runs.models import ALONE, MIXED

pytestmark = pytest.mark.xdist_group("programs")  # torch's exporters and compiler take seconds to load: in one worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("the") / "run"
    assert torso.run(tiny("fedthe", "train.rounds=2", "train.fraction=1.0"), out).ok
    return out


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return torso.load(folder)


def images(count: int = 12) -> np.ndarray:  # type: ignore[type-arg]
    return digits().test.samples[:count].numpy()


def test_an_answer_by_hand() -> None:
    """One feature, heads (20x, 0) and (0, 20x) that are sure of different classes: at x = 1 near the common centre 1 it
    is the generic head's, near the own centre 9 it is the client's."""
    for centres, wanted in (([1.0, 9.0], [20.0, 0.0]), ([9.0, 1.0], [0.0, 20.0])):
        head = DualHead(Linear(1, 2, bias=False), Linear(1, 2, bias=False), adds=False)
        head.generic.weight.data = torch.tensor([[20.0], [0.0]])
        head.personal.weight.data = torch.tensor([[0.0], [20.0]])
        head.centres = torch.tensor(centres).unsqueeze(1)
        x = torch.ones(1, 1)
        torch.testing.assert_close(head.answer(x, head(x)), torch.tensor([wanted]))
        head.centres = None
        torch.testing.assert_close(head.answer(x, head(x)), torch.tensor([[0.0, 20.0]]))


def client(result: Result) -> Network:
    """A client's model. Its generic head has learned for two rounds and is sure of nothing: here it is made surer, so
    that both heads have a say."""
    net = result.network(3)
    assert isinstance(net.head, DualHead)
    net.head.generic.weight.data *= 10
    return net


@torch.no_grad()
def parts(net: Network) -> tuple[Output, Tensor]:
    """Both heads' logits of some images, and what the network answers."""
    x = net.prepare(images())
    said = net(x[None], stacked=True)
    return said, net(x)


def test_a_clients_model_mixes_as_the_measure_does_for_a_first_sample(result: Result) -> None:
    net = client(result)
    assert isinstance(net.head, DualHead)
    assert net.head.centres is not None
    said, answer = parts(net)
    shares = []
    for place in range(len(answer)):
        first = HeadEnsemble(net.head.centres[:1], net.head.centres[1:])  # each begins a history of its own
        one = Output(*(t[:, place : place + 1] for t in (said.features, said.logits, said.own)))
        shares.append(float(first.weights(one)))
    share = torch.tensor(shares).unsqueeze(-1)
    torch.testing.assert_close(answer, share * said.logits[0] + (1 - share) * said.own[0])
    assert 0.1 < float(share.mean()) < 0.9, "both heads have a part in it"
    torch.testing.assert_close(net(net.prepare(images(1))), answer[:1])  # alone as in company
    assert torch.equal(
        mixed_answer(net.head.centres[None])(said)[0], answer.argmax(dim=1)
    )  # as a client counts at home
    assert not torch.equal(answer.argmax(dim=1), said.own[0].argmax(dim=1))


def test_the_own_centre_is_the_mean_feature_of_the_clients_samples(result: Result) -> None:
    net, data = result.network(3), digits().train
    assert isinstance(net.head, DualHead)
    assert net.head.centres is not None
    with torch.no_grad():
        features = net.features(net.prepare(data.samples[data.rows(3)].numpy()))
    torch.testing.assert_close(net.head.centres[1], features.mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.head.centres[0], result.models.state.server.statistics["centre"])  # type: ignore[union-attr]


def test_files_mix_and_say_so(result: Result, tmp_path: Path) -> None:
    """A program is kept only if it answers as the network does."""
    net = client(result)
    assert net.card is not None
    assert net.card.answers == MIXED
    again = load_model(save_model(net, tmp_path / "client.safetensors"))
    assert again.card == net.card
    x = net.prepare(images())
    assert torch.equal(again(x), net(x))
    assert "e·generic(x) + (1 − e)·personal(x)" in str(again)
    save_model(net, tmp_path / "client.pt2")
    told = {"card.json": ""}
    program = torch.export.load(tmp_path / "client.pt2", extra_files=told).module()
    torch.testing.assert_close(program(torch.as_tensor(images())), net(x))
    assert "mixed for each sample by itself" in told["card.json"]


def test_onnx_mixes(result: Result, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    net = client(result)
    session = runtime.InferenceSession(str(save_model(net, tmp_path / "client.onnx")))
    (found,) = session.run(None, {session.get_inputs()[0].name: images()})
    torch.testing.assert_close(torch.from_numpy(found), net(net.prepare(images())), rtol=1e-4, atol=1e-4)


def test_the_page_and_predictions_say_what_an_answer_is(result: Result, folder: Path, tmp_path: Path) -> None:
    done = export(result, tmp_path / "models", generic=False, clients=[3], form=ExportOptions())
    assert f"An answer is {MIXED}." in done.page.read_text(encoding="utf-8")
    of_folder, of_file = (
        predict(model, images(), **more) for model, more in ((folder, {"client": 3}), (done.files[0], {}))
    )
    np.testing.assert_array_equal(of_folder.probabilities, of_file.probabilities)
    net = result.network(3)
    wanted = net(net.prepare(images())).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(of_folder.probabilities, wanted, rtol=1e-5, atol=1e-6)
    assert f"an answer is {MIXED}" in of_folder.remarks


def test_the_generic_and_the_held_model_do_not_mix(result: Result) -> None:
    generic = result.network()
    assert generic.card is not None
    assert generic.card.answers == ""
    said, answer = parts(generic)
    assert torch.equal(answer, said.logits[0])
    ((_, held),) = result.networks([3], personal=False)
    assert held.card is not None
    assert held.card.answers == ALONE
    said, answer = parts(held)
    assert torch.equal(answer, said.own[0])
