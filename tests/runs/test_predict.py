"""A trained model answers about files: what it says, what is done to the files, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import Said, Torso

import torso as library
from torso import RequestError
from torso.data.inputs import Floats, Pixels, Tokens
from torso.nets import Network
from torso.nets.card import Card
from torso.runs.predict import in_batches
from torso.runs.user_data import read_user_data
from torso.runs.user_images import decoded, fitted, remarks_on

from .named import NAMES, digits, trained, write_images


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("predict"), "fedavg")


@pytest.fixture(scope="module")
def net(run: Path) -> Network:
    return library.load(run).network()


@pytest.fixture(scope="module")
def model(run: Path, net: Network) -> Path:
    return library.save_model(net, run.parent / "generic.safetensors")


@pytest.fixture
def card(net: Network) -> Card:
    assert net.card is not None
    return net.card


def refused(said: Said, *words: str) -> None:
    assert said.status == 2
    assert said.err.count("\n") == 1, said.err
    assert all(word in said.err for word in words), said.err


def test_class_names_are_in_the_file(model: Path) -> None:
    again = library.load_model(model)
    assert again.card is not None
    assert again.card.class_names == NAMES


def test_probabilities_are_those_of_the_network(model: Path, net: Network) -> None:
    images, labels = digits()
    found = library.predict(model, images[-300:])
    with torch.no_grad():
        expected = torch.softmax(net(net.prepare(images[-300:])), dim=1)
    torch.testing.assert_close(torch.from_numpy(found.probabilities), expected)
    best = np.array([NAMES.index(row[0][0]) for row in found.top(1)])
    assert (best == labels[-300:]).mean() > 0.7  # names stand in the order of the logits


def test_a_folder_of_images(torso: Torso, model: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", ("three", "seven"), each=3)
    Image.open(folder / "three" / "0.png").resize((40, 30)).convert("RGB").save(folder / "three" / "large.png")
    (folder / "three" / "notes.txt").write_text("no image")
    (folder / "seven" / "broken.png").write_bytes(b"\x89PNG nothing")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.png").write_bytes(b"")
    said = torso("predict", str(model), "--data", str(folder), "--top", "2")
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[:7]] == [
        *("seven/0.png", "seven/1.png", "seven/2.png"),
        *("three/0.png", "three/1.png", "three/2.png", "three/large.png"),
    ]
    assert all(line.count("%") == 2 for line in lines[:7])
    assert lines[7].endswith("%)")
    assert "of 7 answers match the labels of the data" in lines[7]
    for remark in (
        "1 of 7 images was resized to 8×8 (from 40×30; the proportions changed)",
        "1 of 7 images was converted from colour to grey",
        "1 image was skipped: seven/broken.png. ",
        "broken.png cannot be read (not an image). Expected: an image",
        "1 file was skipped: no image",
    ):
        assert said.err.count(remark) == 1, said.err


def test_folders_of_several_clients(torso: Torso, model: Path, tmp_path: Path) -> None:
    for clinic in ("north clinic", "Юг"):
        write_images(tmp_path / "data" / clinic, ("three", "seven"), each=2)
    said = torso("predict", str(model), "--data", "data")
    assert said.status == 0, said.err
    assert "of 8 answers match the labels of the data" in said.out
    assert "the folders around them are none of the model: north clinic, Юг" in said.err


def test_classes_that_the_model_has_not_are_said(torso: Torso, model: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", ("three", "seven"), each=1)
    (folder / "three").rename(folder / "unheard of")
    said = torso("predict", str(model), "--data", "data")
    assert said.status == 0, said.err
    assert "right answers are not counted: the data name classes that the model has not (unheard of)" in said.err
    assert "the data name" not in said.out


def test_json_and_csv(torso: Torso, model: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", ("two",), each=2)
    said = torso("predict", str(model), "--data", str(folder), "--json", "--out", "below/found.csv")
    found = json.loads(said.out)
    first = found["predictions"][0]
    assert first["sample"] == "two/0.png"
    assert len(first["classes"]) == 3
    assert found["classes"] == list(NAMES)
    with (tmp_path / "below" / "found.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sample"] for row in rows] == ["two/0.png", "two/1.png"]
    assert rows[0]["class_1"] == first["classes"][0]["name"]
    assert float(rows[0]["probability_1"]) == pytest.approx(first["classes"][0]["probability"], abs=1e-6)


def test_a_client_of_a_run_is_asked_by_number(torso: Torso, run: Path, tmp_path: Path) -> None:
    image = write_images(tmp_path / "data", ("five",), each=1) / "five" / "0.png"
    said = torso("predict", str(run), "--client", "2", "--data", str(image), "--json")
    assert "personal model of client 2" in json.loads(said.out)["model"]
    own = library.predict(library.load(run).network(2), image)
    found = json.loads(said.out)["predictions"][0]["classes"][0]
    assert found["name"] == own.top(1)[0][0][0]
    assert found["probability"] == pytest.approx(own.top(1)[0][0][1], abs=1e-5)
    refused(torso("predict", str(run), "--client", "9", "--data", str(image)), "client = 9", "0 to 3")


def test_what_does_not_fit_is_refused_in_one_line(torso: Torso, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_bytes(b"nothing")
    np.savez(tmp_path / "floats.npz", images=np.zeros((2, 8, 8)))
    np.savez(tmp_path / "other.npz", pictures=np.zeros((2, 8, 8), np.uint8))
    good = write_images(tmp_path / "data", ("one",), each=1)
    ask = ("predict", str(model), "--data")
    refused(torso(*ask, "nowhere"), "'nowhere' does not exist", "8×8")
    refused(torso(*ask, "empty"), "none of them an image")
    refused(torso(*ask, "a.png"), "a.png cannot be read")
    refused(torso(*ask, "floats.npz"), "float64", "uint8")
    refused(torso(*ask, "other.npz"), "pictures", "images or samples")
    refused(torso(*ask, str(good), "--out", "found.txt"), "does not end in .csv")
    refused(torso(*ask, str(good), "--client", "1"), "holds one model")
    refused(torso("predict", "none.safetensors", "--data", str(good)), "none.safetensors")


def test_colour_size_and_exif() -> None:
    """A 2 × 1 image, red and blue, turned by a quarter: upright it is 1 × 2 with one colour on top."""
    image, file, exif = Image.fromarray(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8)), BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turn it clockwise to show it
    image.save(file, "PNG", exif=exif)
    found = decoded("x", file.getvalue(), Pixels(3, 2, 1))
    assert found.turned
    assert found.pixels[:, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    grey = decoded("x", file.getvalue(), Pixels(1, 4, 4))
    assert remarks_on([grey], Pixels(1, 4, 4)) == (
        "the image was resized to 4×4 (from 1×2; the proportions changed)",
        "the image was converted from colour to grey",
        "the image was turned upright, as the EXIF data say",
    )


def test_too_many_pixels_and_other_formats_are_not_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torso.runs.user_images.MOST_PIXELS", 1_000_000)
    Image.new("L", (1001, 1000)).save(tmp_path / "large.png")
    with pytest.raises(RequestError, match="1001×1000 pixels"):
        decoded("large.png", (tmp_path / "large.png").read_bytes(), Pixels(1, 8, 8))
    with pytest.raises(RequestError, match="cannot be read"):
        decoded("x.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", Pixels(1, 8, 8))
    with pytest.raises(RequestError, match="more than 8 bits"):
        fitted("x", Image.new("I;16", (8, 8)), Pixels(1, 8, 8))


def test_rows_of_a_table(card: Card, tmp_path: Path) -> None:
    """Mean 2 of `age` fills what is missing; `city` has two categories, a third one is neither."""
    kind = Floats((3,), (2.0, 0.0, 0.0), (1.0, 1.0, 1.0), ("age", "city=Rome", "city=Oslo"))
    table = replace(card, input=kind, classes=2, class_names=("no", "yes"))
    (tmp_path / "rows.csv").write_text("id;city;age;label\n7;Rome;5;yes\n8;Paris;;no\n", encoding="utf-8")
    found = read_user_data(tmp_path / "rows.csv", table)
    assert found.samples.tolist() == [[5, 1, 0], [2, 0, 0]]
    assert found.labels == ("yes", "no")
    assert found.names == ("row 1", "row 2")
    assert found.remarks == (
        "the model does not use column id",
        "age is missing in 1 row: filled with the mean of the training data",
        "city has a value in 1 row that no training row has",
    )
    unnamed = replace(table, input=Floats((2,), (0.0, 0.0), (1.0, 1.0)))
    with pytest.raises(RequestError, match=r"3 columns of features. The model takes rows of 2 numbers"):
        read_user_data(tmp_path / "rows.csv", unnamed)
    with pytest.raises(RequestError, match=r"--label 'labl' is no column of .*; did you mean 'label'\? Columns: id"):
        read_user_data(tmp_path / "rows.csv", table, "labl")
    (tmp_path / "few.csv").write_text("city\nRome\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"few.csv has no column age. The model needs age, city"):
        read_user_data(tmp_path / "few.csv", table)
    with pytest.raises(RequestError, match="is a folder"):
        read_user_data(tmp_path, table)


def test_token_ids(card: Card, tmp_path: Path) -> None:
    tokens = replace(card, input=Tokens(4, 10, 0))
    (tmp_path / "ids.txt").write_text("1 2 3\n\n4\n", encoding="utf-8")
    assert read_user_data(tmp_path / "ids.txt", tokens).samples.tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    (tmp_path / "words.txt").write_text("1 2\ngood film\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"line 2: 'good' is no token id.*tokenizer"):
        read_user_data(tmp_path / "words.txt", tokens)
    (tmp_path / "long.txt").write_text("1 2 3 4 5", encoding="utf-8")
    with pytest.raises(RequestError, match="a line of 5 tokens"):
        read_user_data(tmp_path / "long.txt", tokens)


def test_objects_of_a_program(net: Network) -> None:
    images, _ = digits()
    one = library.predict(net, Image.fromarray(images[0]))
    same = library.predict(net, images[0][..., None])
    many = library.predict(net, [images[0], Image.fromarray(images[1])])
    assert len(one) == len(same) == 1
    np.testing.assert_allclose(one.probabilities, same.probabilities)
    np.testing.assert_allclose(many.probabilities[:1], one.probabilities, rtol=1e-5)


def test_batches_take_every_kth_sample_and_answers_keep_their_order() -> None:
    samples = np.arange(600)
    seen = []

    def call(part: np.ndarray) -> torch.Tensor:
        seen.append(part)
        return torch.from_numpy(part)[:, None]

    assert in_batches(samples, call)[:, 0].tolist() == samples.tolist()
    assert [part[:2].tolist() for part in seen] == [[0, 3], [1, 4], [2, 5]]


def test_a_network_that_goes_by_the_batch_says_so(net: Network, card: Card) -> None:
    images, _ = digits()
    try:
        net.card = replace(card, batch_statistics=True)
        assert "a single sample is answered badly" in library.predict(net, images[:1]).remarks[-1]
        assert "depends on the other samples of its batch" in library.predict(net, images[:9]).remarks[-1]
    finally:
        net.card = card


def test_the_folder_of_a_client_of_a_federation(torso: Torso, model: Path, tmp_path: Path) -> None:
    home, image = tmp_path / "home", write_images(tmp_path / "data", ("six",), each=1)
    (home / "models").mkdir(parents=True)
    refused(torso("predict", str(home), "--data", str(image)), "holds no model")
    shutil.copyfile(model, home / "models" / "run.safetensors")
    (home / "models" / "run.json").write_text("{}")
    said = torso("predict", str(home), "--data", str(image), "--json")
    assert json.loads(said.out)["predictions"][0]["sample"] == "six/0.png"
    refused(torso("predict", str(home), "--client", "1", "--data", str(image)), "Leave --client out")


def test_a_folder_with_one_model_is_that_model(torso: Torso, net: Network, tmp_path: Path) -> None:
    image = str(write_images(tmp_path / "data", ("six",), each=1))
    library.save_model(net, tmp_path / "out" / "generic.safetensors")
    assert torso("predict", "out", "--data", image).status == 0
    assert torso("personalize", "out", "--data", image, "--how", "class-means").status == 0
    library.save_model(net, tmp_path / "out" / "other.safetensors")
    refused(torso("predict", "out", "--data", image), "2 models", "generic.safetensors, other.safetensors")


def test_a_model_that_is_not_there(torso: Torso, tmp_path: Path) -> None:
    refused(torso("predict", "nowhere", "--data", "x.png"), "'nowhere' does not exist", "folder of a finished run")
