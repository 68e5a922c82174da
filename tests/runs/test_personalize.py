"""A client that was not there gets a model from its files: how, what it is worth, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import Torso

import torso as library
from torso import RequestError, Result
from torso.nets import Network
from torso.nets.class_means import best_scale, with_class_means
from torso.runs.ways import split_by_class

from .named import NAMES, digits, trained, write_images

KNOWN = 8  # classes of the runs: eight and nine are new
MINE = ("two", "four", "seven")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made heads, so that every way but calibration is there."""
    return trained(tmp_path_factory.mktemp("hyper"), "fedrod-hyper", classes=KNOWN)


@pytest.fixture(scope="module")
def result(run: Path) -> Result:
    return library.load(run)


@pytest.fixture(scope="module")
def model(run: Path, result: Result) -> Path:
    return library.save_model(result.network(), run.parent / "generic.safetensors")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("mine"), MINE, each=10)


@pytest.fixture(scope="module")
def by_batch() -> Network:
    """A network whose BatchNorm goes by the batch."""
    images, labels = digits()
    config = library.Config.load(
        None, ["model.body=conv3", "train.rounds=1", "train.local_epochs=2", "train.lr=0.05", "measure.names=initial"]
    )
    halves = [(images[:200], labels[:200]), (images[200:400], labels[200:400])]
    return library.run(config, clients=halves).network()


def same_answers(one: Network, other: Network) -> bool:
    images, _ = digits()
    with torch.no_grad():
        return torch.equal(one(one.prepare(images[:20])), other(other.prepare(images[:20])))


# the parts


def test_nearest_class_mean_by_hand(result: Result) -> None:
    """Two features. Class 0 has (2, 0) and (4, 0), class 2 has (0, 1) and (0, 3); class 1 has no samples."""
    features, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0], [4.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 2, 0, 2])
    made = with_class_means(result.network(), features, labels, 3)
    said = torch.softmax(made.head(torch.tensor([[1.0, 0.2], [0.1, 9.0], [-1.0, -1.1]])), dim=1)
    assert said.argmax(dim=1).tolist() == [0, 2, 0]  # by the angle, not by the distance
    assert said[:, 1].tolist() == [0, 0, 0]
    rows = made.head.get_parameter("weight")
    torch.testing.assert_close(rows[0] / rows[0].norm(), torch.tensor([1.0, 0.0]))


def test_probabilities_of_class_means_are_as_sure_as_the_samples_allow() -> None:
    """Classes that lie apart get a large factor, classes that overlap a small one."""
    labels = torch.arange(200) % 2
    apart = torch.where(labels[:, None] == 0, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    noise = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    assert best_scale(apart + 0.01 * noise, labels, 2) > 10 * best_scale(apart + 2 * noise, labels, 2)
    assert best_scale(apart[:2], labels[:2], 2) == 16  # each is alone in its class


def test_the_part_held_out_is_stratified_and_keyed_by_the_seed() -> None:
    labels = np.repeat([0, 1, 3, 4], [10, 4, 1, 2])
    train, out = split_by_class(labels, 0.2, 0)
    assert np.bincount(labels[out], minlength=5).tolist() == [2, 1, 0, 0, 1]  # never the only one of a class
    assert sorted([*train, *out]) == list(range(17))
    assert split_by_class(labels, 0.2, 0)[1].tolist() == out.tolist()
    assert any(split_by_class(labels, 0.2, seed)[1].tolist() != out.tolist() for seed in range(1, 5))
    assert not len(split_by_class(labels, 0.0, 0)[1])


# the ways


def test_a_made_head_is_that_of_a_newcomer(result: Result, model: Path, images: Path) -> None:
    found = library.personalize(model, images, how="hyper")
    pixels, labels = _read(images)
    train, _ = split_by_class(labels, 0.2, 0)
    assert same_answers(found.network, result.newcomer(pixels[train], labels[train], epochs=0))
    assert found.network.card is not None
    assert (found.network.card.kind, found.network.card.class_names) == ("newcomer", NAMES[:KNOWN])


def _read(images: Path) -> tuple[np.ndarray, np.ndarray]:
    """Samples in the order of the files."""
    files = sorted(images.rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])
    return pixels, np.array([NAMES.index(path.parent.name) for path in files])


def test_tuning_is_the_rule_of_new_clients(result: Result, images: Path) -> None:
    found = library.personalize(result, images, how="tune", epochs=3, keep=True)
    pixels, labels = _read(images)
    train, test = split_by_class(labels, 0.2, 0)
    expected = result.newcomer(pixels[train], labels[train], epochs=3)
    assert same_answers(found.network, expected)
    with torch.no_grad():
        right = expected(expected.prepare(pixels[test])).argmax(dim=1).numpy() == labels[test]
    assert found.after == pytest.approx(100 * right.mean())
    assert (found.samples, found.held_out) == (24, 6)


def test_auto_takes_what_does_best_on_a_part_of_the_training_samples(run: Path, images: Path) -> None:
    found = library.personalize(run, images)
    (why,) = [remark for remark in found.remarks if remark.startswith("auto:")]
    scores = dict(part.rsplit(" ", 2)[:2] for part in why.partition("samples ")[2].split(", "))
    assert scores.keys() == {"hyper", "class-means", "tune"}
    assert float(scores[found.how]) == max(map(float, scores.values()))


def test_statistics_of_the_client(by_batch: Network, tmp_path: Path) -> None:
    images, labels = digits()
    mine = np.isin(labels, [2, 4, 7]) & (np.arange(len(labels)) > 1500)
    data = tmp_path / "mine.npz"
    np.savez(data, images=images[mine], labels=labels[mine])
    found = library.personalize(by_batch, data, how="calibrate", keep=True)
    card = found.network.card
    assert card is not None
    assert not card.batch_statistics
    with torch.no_grad():
        x = found.network.prepare(images[mine][:5])
        together, alone = found.network(x), torch.cat([found.network(one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    means = library.personalize(by_batch, data, how="class-means", keep=True)
    assert means.after > 80
    assert any("has the statistics of" in remark for remark in means.remarks)


def test_new_classes_are_served_by_class_means(torso: Torso, run: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", ("two", "eight", "nine"), each=10)
    said = torso("personalize", str(run), "--data", str(folder), "--out", "mine", "--how", "tune")
    assert said.status == 0, said.err
    assert "the federation never saw 2 classes of the data, served by class means: eight, nine" in said.err
    net = library.load_model(tmp_path / "mine" / "newcomer.safetensors")
    assert net.card is not None
    assert net.card.class_names == (*NAMES[:KNOWN], "eight", "nine")
    found = library.predict(net, folder)
    assert found.right is not None
    assert found.right > 25
    assert {best[0][0] for best in found.top(1)} == {"two", "eight", "nine"}
    assert "never saw: eight, nine" in (tmp_path / "mine" / "README.md").read_text()
    with pytest.raises(RequestError, match="it is for known classes only, and the data have others"):
        library.personalize(run, folder, how="hyper")


def test_worse_is_said_and_the_model_before_is_written(torso: Torso, run: Path, model: Path, tmp_path: Path) -> None:
    """In the part to learn from the two classes are swapped; the samples held out are right."""
    images, labels = digits()
    rows = np.concatenate([np.flatnonzero(labels == c)[-10:] for c in (2, 4)])
    train, _ = split_by_class(labels[rows], 0.2, 0)
    swapped = images[rows].copy()
    swapped[train] = swapped[train[::-1]]
    np.savez(tmp_path / "odd.npz", images=swapped, labels=labels[rows])
    ask = ("personalize", str(model), "--data", "odd.npz", "--how", "class-means")
    said = torso(*ask, "--out", "kept")
    assert "personalising made it worse: the result is the model as it was before" in said.out, said
    assert same_answers(library.load_model(tmp_path / "kept" / "generic.safetensors"), library.load_model(model))
    found = json.loads(torso(*ask, "--out", "mine", "--keep", "--json").out)
    assert found["after"] < found["before"]
    assert found["personal"]
    assert (tmp_path / "mine" / "newcomer.safetensors").exists()


def test_what_does_not_fit_is_refused(torso: Torso, model: Path, run: Path, images: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "0.png").write_bytes((images / "two" / "0.png").read_bytes())
    write_images(tmp_path / "parted" / "train", ("two",), each=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")

    def refused(*words: str, said: str) -> None:
        found = torso("personalize", *words)
        assert found.status == 2
        assert said in found.err
        assert found.err.count("\n") == 1, found.err

    refused(str(model), "--data", str(flat), said="do not say the class of each sample")
    refused(str(model), "--data", "parted", said="'train' where classes should be")
    refused(str(model), "--data", str(images), "--how", "tune", said="the folder of its run does")
    refused(str(model), "--data", str(images), "--how", "calibrate", said="has no BatchNorm. Accepted here: auto")
    refused(str(model), "--data", str(images), "--how", "guess", said="'guess' is unknown")
    refused(str(model), "--data", str(images), "--how", "hyper", "--epochs", "3", said="epochs = 3 is of how = tune")
    refused(str(run), "--data", str(images), "--held-out", "1.5", said="held_out = 1.5")
    refused(str(run), "--data", str(images), "--out", "full", said="is not empty")


def test_one_sample_of_each_class_leaves_nothing_to_measure_on(torso: Torso, model: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "few", MINE, each=1)
    said = torso("personalize", str(model), "--data", "few", "--how", "class-means")
    assert said.status == 0
    assert "no sample was held out" in said.out


def test_a_run_whose_network_goes_by_the_batch_is_asked_with_statistics(tmp_path: Path) -> None:
    """An image alone and in company has the same answer: of a client, and of the generic model."""
    run = trained(tmp_path, "fedavg", "model.body=conv3", "train.rounds=1", "train.local_epochs=1")
    images, _ = digits()
    for client in (None, "1"):
        alone, together = (library.predict(run, images[:many], client=client) for many in (1, 5))
        np.testing.assert_allclose(alone.probabilities[0], together.probabilities[0], rtol=1e-4)
        assert any("BatchNorm has the statistics of" in remark for remark in alone.remarks)
