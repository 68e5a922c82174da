"""The models that come out of a run are those that were measured; of a folder, those of the run."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs import samples

import torso
from torso import Config, RequestError, Result
from torso.nets import Network

METHODS = (
    "pfedfda",
    "fedavg",
    "fedbabu",
    "fedper",
    "fedrep",
    "lg-fedavg",
    "ditto",
    "pfedme",
    "fedrod-linear",
    "fedrod-hyper",
    "gpfl",
    "fedncm",
    "local-only",
    "fedfomo",
    "mtl",
    "feddyn",
)
LATE = ("data.new_clients=2", "measure.names=initial,personalized,personal,generic,new_before,new_after")


def config(method: str, *sets: str) -> Config:
    rates = ("personalize.epochs=3", "personalize.lr=0.05")  # so that personalisation is seen
    return samples.tiny(method, *LATE, *rates, *sets)


@cache
def ended(method: str, *sets: str) -> Result:
    result = torso.run(config(method, *sets))
    assert result.ok
    return result


def own_accuracy(result: Result, net: Network, client: int, batch: int = 128) -> float:
    """Plain PyTorch: the client's own test samples, in their order."""
    assert result.federation is not None
    test = result.federation.test
    rows = test.rows(client)
    with torch.no_grad():
        said = torch.cat([net(net.prepare(test.samples[part])) for part in rows.split(batch)])
    return 100 * (said.argmax(dim=1) == test.labels[rows]).float().mean().item()


def accuracy_by_mix(result: Result, net: Network, counts: torch.Tensor) -> float:
    """Every sample of the test set, weighed by the client's share of its class (spec 9.4)."""
    assert result.federation is not None
    test = result.federation.test
    with torch.no_grad():
        said = torch.cat([net(net.prepare(part)) for part in test.samples[result.federation.test_order].split(128)])
    labels = test.labels[result.federation.test_order]
    share = (counts / counts.sum())[labels]
    return 100 * float(((said.argmax(dim=1) == labels) * share).sum() / share.sum())


def trained(result: Result) -> list[int]:
    assert result.job is not None
    return list(result.job.measured_clients)


# a run in this process


@pytest.mark.parametrize("method", METHODS)
def test_a_clients_network_is_the_personal_model_that_was_measured(method: str) -> None:
    result = ended(method)
    assert result.federation is not None
    for place, client in enumerate(trained(result)):
        net = result.network(client)
        assert own_accuracy(result, net, client) == pytest.approx(result.accuracy["personalized"].clients[place])
        by_mix = accuracy_by_mix(result, net, result.federation.class_counts[client])
        assert by_mix == pytest.approx(result.accuracy["personal"].clients[place], abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_personal_is_false_gives_the_model_before_and_no_client_the_generic_one(method: str) -> None:
    result = ended(method)
    assert result.federation is not None
    first = trained(result)[0]
    held = own_accuracy(result, result.network(first, personal=False), first)
    assert held == pytest.approx(result.accuracy["initial"].clients[0])
    plain = accuracy_by_mix(result, result.network(), torch.ones(result.federation.classes))
    assert plain == pytest.approx(result.accuracy["generic"].mean, abs=1e-4)


@pytest.mark.parametrize("method", ["fedbabu", "fedper", "fedrod-hyper", "fedavg-brm"])
def test_clients_that_never_train_get_what_newcomers_are_measured_with(method: str) -> None:
    result = ended(method)
    assert result.federation is not None
    for place, client in enumerate(result.federation.newcomers.tolist()):
        counts = result.federation.class_counts[client]
        after, before = result.network(client), result.network(client, personal=False)
        assert accuracy_by_mix(result, after, counts) == pytest.approx(
            result.accuracy["new_after"].clients[place], abs=1e-4
        )
        assert accuracy_by_mix(result, before, counts) == pytest.approx(
            result.accuracy["new_before"].clients[place], abs=1e-4
        )


def test_clients_that_were_stacked_or_not_measured_have_networks_too() -> None:
    """The same models up to rounding, whoever stands beside them; `measure.clients` limits measures, not models."""
    alone = ended("fedrod-linear")
    other = ended("fedrod-linear", "run.engine=batched", "run.clients_at_once=4", "measure.clients=3")
    assert len(trained(other)) == 3
    for (client, net), (same_client, its) in zip(alone.networks(), other.networks(), strict=True):
        assert client == same_client
        for name, tensor in net.contents().items():
            assert torch.allclose(tensor, its.contents()[name], atol=1e-4), (client, name)


def test_torch_has_its_threads_while_networks_are_taken() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    one, other = ended("fedavg").networks(), ended("fedper").networks()
    next(one), next(other)
    assert torch.get_num_threads() == 2
    one.close(), other.close()  # type: ignore[attr-defined]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_networks_are_those_of_network_newcomers_last() -> None:
    result = ended("fedper")
    assert result.federation is not None
    every = dict(result.networks())
    assert sorted(every) == list(range(10))
    assert list(every)[-2:] == result.federation.newcomers.tolist()
    for client in (0, 7):
        assert same(every[client], result.network(client))
    assert [client for client, _ in result.networks([3, np.int64(1)])] == [3, 1]


def test_batch_statistics_and_running_ones() -> None:
    """The company of an image matters with the first, not with the second; the card says which."""
    for norm, by_batch in (("default", True), ("running", False)):
        result = ended("fedbabu", "model.body=conv3", f"model.norm={norm}", "train.rounds=1")
        net, first = result.network(trained(result)[0]), trained(result)[0]
        assert own_accuracy(result, net, first) == pytest.approx(result.accuracy["personalized"].clients[0])
        assert result.federation is not None
        some = net.prepare(result.federation.test.samples[:8])
        assert torch.allclose(net(some)[:2], net(some[:2]), atol=1e-5) is not by_batch
        assert net.card is not None
        assert net.card.batch_statistics is by_batch
        assert not net.training


def test_images_are_prepared_as_the_run_saw_them() -> None:
    result = ended("fedavg")
    net, federation = result.network(), result.federation
    assert federation is not None
    images = federation.test.samples[:3]
    by_hand = (images.permute(0, 3, 1, 2) / 255 - federation.input.mean[0]) / federation.input.std[0]
    assert torch.allclose(net.prepare(images), by_hand, atol=1e-6)
    assert torch.equal(net.prepare(images[..., 0].numpy()), net.prepare(images))
    with pytest.raises(RequestError, match=r"images are \[3, 8, 7, 1\]. Expected: \[n, 8, 8, 1\]"):
        net.prepare(images[:, :, :7])
    with pytest.raises(RequestError, match="images are float32"):
        net.prepare(images / 255)


@pytest.mark.parametrize("client", ["a", 10, -1, 1.0, True])
def test_clients_that_do_not_exist_are_refused(client: Any) -> None:
    with pytest.raises(RequestError, match=r"does not exist. Accepted: 0 to 9"):
        ended("fedavg").network(client)


def test_a_config_may_be_a_dict_and_nothing_else() -> None:
    tree = config("fedavg").as_tree()
    result = torso.run(tree)
    assert result.accuracy == ended("fedavg").accuracy
    with pytest.raises(RequestError, match=r"the config is str 'fedavg'. Expected: a torso.Config"):
        torso.run("fedavg")  # type: ignore[arg-type]


# who comes later


@pytest.mark.parametrize("method", ["fedbabu", "fedrod-hyper", "fedavg-brm"])
def test_a_newcomer_gets_what_the_measure_of_newcomers_gives_the_same_data(method: str) -> None:
    """A newcomer of the federation, once more from arrays: bit for bit, under its number."""
    result = ended(method)
    assert result.job is not None
    assert result.state is not None
    federation = result.job.federation
    client = int(federation.newcomers[1])
    rows = federation.train.rows(client)
    card = result.network().card
    assert card is not None
    mine = federation.train.samples[rows].numpy(), federation.train.labels[rows].numpy()
    for epochs, personal in ((None, True), (3, True), (0, False)):
        again = result.models.newcomer(*mine, epochs, client)
        assert same(again, result.network(client, personal=personal))
    assert not same(result.network(client), result.network(client, personal=False))


def test_a_newcomer_from_arrays() -> None:
    """It learns its two classes; without training it has the server's model as it is."""
    result = ended("fedbabu")
    federation = result.federation
    assert federation is not None
    chosen = (federation.train.labels == 3) | (federation.train.labels == 7)
    images, labels = federation.train.samples[chosen].numpy(), federation.train.labels[chosen].numpy()
    at_once, later = result.newcomer(images[..., 0], labels, epochs=0), result.newcomer(images, labels, epochs=20)
    assert same(at_once, result.network(int(federation.newcomers[0]), personal=False))
    mine = (federation.test.labels == 3) | (federation.test.labels == 7)
    test = federation.test.samples[mine], federation.test.labels[mine]
    right = [(net(net.prepare(test[0])).argmax(dim=1) == test[1]).float().mean() for net in (at_once, later)]
    assert right[1] > max(0.9, right[0])
    assert later.card is not None
    assert (later.card.kind, later.card.client) == ("newcomer", None)


@pytest.mark.parametrize(
    ("images", "labels", "epochs", "message"),
    [
        (np.zeros((2, 8, 8), np.uint8), [0, 10], None, "newcomer: label 10 is not a class. Expected: 0 to 9"),
        (np.zeros((2, 9, 8), np.uint8), [0, 1], None, r"newcomer: images are \[2, 9, 8, 1\]. Expected: \[n, 8, 8, 1\]"),
        (np.zeros((2, 8, 8), np.uint8), [0], None, "2 images but 1 labels"),
        (np.zeros((2, 8, 8), np.uint8), [0.5, 1], None, "labels are float64"),
        (np.zeros((0, 8, 8), np.uint8), [], None, "there are no images"),
        (np.zeros((2, 8, 8), np.uint8), [0, 1], -1, "epochs = -1 is not accepted. Expected: 0 or more"),
    ],
)
def test_a_newcomers_data_must_fit(images: Any, labels: Any, epochs: int | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ended("fedavg").newcomer(images, labels, epochs=epochs)


# from a folder


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "fedrod-hyper", "fedncm", "feddyn", "lg-fedavg"])
def test_a_folder_gives_the_same_models(method: str, tmp_path: Path) -> None:
    result = torso.run(config(method), tmp_path / "run")
    again = torso.load(str(tmp_path / "run"))
    assert again == Result.read(str(tmp_path / "run"))
    assert same(again.network(), result.network())
    theirs = dict(result.networks())
    for client, net in again.networks():
        assert same(net, theirs[client])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torso.run(config("fedavg"), tmp_path / "run")
    return tmp_path / "run"


def test_numbers_alone_say_where_the_models_are(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"numbers and no models: it was read from .* torso\.load\("):
        Result.read(folder).network()


def test_folders_without_models_are_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(RequestError, match=message):
            torso.load(folder)

    with pytest.raises(RequestError, match="Give that of a finished run"):
        torso.load(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"is not the folder of one run .* Give one of .*/run\."):
        torso.load(tmp_path)
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1] + b"x")
    refused(r"no whole checkpoint of the last round, 4: round-000004.json is damaged \(the checksum")
    newest.write_bytes(whole)
    (folder / "seal.json").unlink()  # it would be seen that the result is another
    result = folder / "result.json"
    told = result.read_text(encoding="utf-8")
    result.write_text(told.replace('"ok"', '"failed: non-finite loss in round 2"'), encoding="utf-8")
    refused("failed: non-finite loss in round 2. Only a run that ended well has models")
    result.unlink()
    refused("has not finished .* torso run --out .* --resume")
    result.write_text(told, encoding="utf-8")
    shutil.rmtree(folder / "checkpoints")
    refused("no whole checkpoint of the last round, 4: there is none")


def test_data_that_have_moved(tmp_path: Path) -> None:
    test = samples.digits().test
    arrays = {"train_images": test.samples, "train_labels": test.labels}
    arrays |= {"test_images": test.samples, "test_labels": test.labels}
    np.savez(tmp_path / "old.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    sets = ("data.source=npz", f"data.root={tmp_path / 'old.npz'}")
    result = torso.run(config("fedper", *sets), tmp_path / "run")
    (tmp_path / "old.npz").rename(tmp_path / "new.npz")
    with pytest.raises(RequestError, match=r"data\.root = .*old\.npz' does not exist"):
        torso.load(tmp_path / "run")
    again = torso.load(tmp_path / "run", data_root=tmp_path / "new.npz", device="cpu")
    assert same(again.network(2), result.network(2))


def test_what_a_run_began_with_need_not_be_there_any_more(tmp_path: Path) -> None:
    torso.run(config("fedavg"), tmp_path / "first")
    sets = (f"method.start.run={tmp_path / 'first'}", f"model.weights={tmp_path / 'first'}")
    result = torso.run(config("lg-fedavg", *sets), tmp_path / "run")
    shutil.rmtree(tmp_path / "first")
    assert same(torso.load(tmp_path / "run").network(1), result.network(1))


def same(one: Network, other: Network) -> bool:
    """Bit for bit, what a head was told of a client included."""
    mine, its = one.contents(), other.contents()
    return mine.keys() == its.keys() and all(torch.equal(tensor, its[name]) for name, tensor in mine.items())
