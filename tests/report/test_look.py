"""`torso data look` as a user meets it, the config that it makes, and names on their way through a run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.conftest import Torso

import torso as library
from torso.config import Config
from torso.runs.job import simulate

CLIENTS = ("Klinik Süd", "clinic-3", "北京")


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits 0 to 2 of three clients, 6×6 pixels, eight or so of each; a copy, a broken file and a note among them."""
    root = tmp_path_factory.mktemp("data") / "clinics"
    digits = load_digits(n_class=3)
    for i in range(75):
        folder = root / CLIENTS[i % 3] / f"digit {digits.target[i]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i][1:7, 1:7] * 15).astype(np.uint8)).save(folder / f"{i:03}.png")
    (root / "clinic-3" / "digit 1" / "broken.png").write_bytes(b"\x89PNG")
    (root / "clinic-3" / "digit 1" / "notes.txt").write_text("no image")
    first = next((root / "北京" / "digit 0").iterdir())
    (root / "Klinik Süd" / "digit 0" / "copy.png").write_bytes(first.read_bytes())
    return root


def test_what_is_printed(torso: Torso, clinics: Path) -> None:
    said = torso("data", "look", str(clinics))
    assert said.status == 0
    for text in (
        *("76 images, 3 clients, 3 classes", "6×6 pixels; 76 grey, 0 colour; unreadable files: 1", "digit 2", *CLIENTS),
        *("clinic-3/digit 1/broken.png (", "Klinik Süd/digit 0/copy.png = 北京/digit 0/", 'partition = "by-client"'),
        "Files passed over because they are not images: 1.",
    ):
        assert text in said.out, text
    assert "█" in said.out


def test_the_config_that_fits_trains_as_it_is_and_names_are_kept(torso: Torso, clinics: Path) -> None:
    """look → run → report → export: the same names everywhere."""
    assert torso("data", "look", str(clinics), "--out", "made").status == 0
    assert sorted(path.name for path in Path("made").iterdir()) == [
        *("config.toml", "look.json", "partition.svg", "samples.svg")
    ]
    ended = torso("run", "made/config.toml", "--out", "run", "--quiet", "--json")
    assert ended.status == 0, ended.err
    result = json.loads(Path("run/result.json").read_text(encoding="utf-8"))
    assert tuple(result["names"]) == CLIENTS
    assert result["class_names"] == ["digit 0", "digit 1", "digit 2"]
    assert result["accuracy"]["personalized"]["mean"] > 80
    assert torso("report", "run").status == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "client 北京: " in page
    assert "digit 2</text>" in page
    assert torso("export", "run", "--clients", "clinic-3,Klinik Süd,2", "--out", "models").status == 0
    assert sorted(path.stem for path in Path("models").iterdir()) == ["Klinik-Süd", "README", "clinic-3", "北京"]
    card = library.load_model("models/clinic-3.safetensors").card
    assert card is not None
    assert (card.client, card.class_names) == ("clinic-3", ("digit 0", "digit 1", "digit 2"))
    page = Path("models/README.md").read_text(encoding="utf-8")
    assert "logits [n, 3], one for each class, in this order: digit 0, digit 1, digit 2." in page
    refused = torso("export", "run", "--clients", "clinic-9", "--out", "more")
    assert refused.status == 2
    assert "Accepted: all, or names such as Klinik Süd, clinic-3, 北京, or numbers from 0 to 2" in refused.err


def test_pictures_are_whole_and_show_images(torso: Torso, clinics: Path) -> None:
    torso("data", "look", str(clinics), "--out", "made")
    sheet, chart = (ElementTree.parse(f"made/{name}.svg").getroot() for name in ("samples", "partition"))
    assert len(sheet.findall("{*}image")) == 24  # eight of each class
    titles = [title.text or "" for title in sheet.iter("{http://www.w3.org/2000/svg}title")]
    assert {title.split("/")[0] for title in titles[:3]} == set(CLIENTS)  # one of each client in turn
    words = {text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert {*CLIENTS, "digit 0"} <= words


def test_as_data(torso: Torso, clinics: Path) -> None:
    found = json.loads(torso("data", "look", str(clinics), "--json").out)
    assert found["clients"] == list(CLIENTS)
    assert np.sum(found["train"]) == 76
    assert found["duplicates"]["between_clients"]["groups"] == 1
    assert found["config"]["data"]["root"] == str(clinics.resolve())
    assert found["files"] == []


def folder_by_class(root: Path, side: int) -> Path:
    rng = np.random.default_rng(0)
    for label in "abc":
        (root / label).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (side + i % 2, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{i}.png")
    return root


def table(path: Path) -> Path:
    rows = [f"{i},{['no', 'yes'][i % 2]},site-{i % 3},{['ill', 'well'][i % 2]}" for i in range(40)]
    path.write_text("\n".join(["age,smokes,hospital,state", *rows]), encoding="utf-8")
    return path


def arrays(path: Path, kind: str) -> Path:
    labels = np.arange(40) % 2
    samples = np.arange(400).reshape(40, 10) % 7
    samples = samples.astype(np.float32) if kind == "floats" else samples
    mask = {f"{split}_mask": np.ones((20, 10), int) for split in ("train", "test")} if kind == "tokens" else {}
    parts = {"train_samples": samples[:20], "train_labels": labels[:20], "test_samples": samples[20:]}
    np.savez(path, **parts, test_labels=labels[20:], **mask)
    return path


@pytest.mark.parametrize(
    ("what", "words", "source", "body", "partition"),
    [
        ("images", (), "folder", "conv4", "shards"),
        ("table", ("--label", "state", "--client", "hospital"), "csv", "mlp", "by-client"),
        ("floats", (), "npz", "mlp", "shards"),
        ("tokens", (), "npz", "embedding-mean", "shards"),
    ],
)
def test_the_config_fits_every_kind(
    torso: Torso, tmp_path: Path, what: str, words: tuple[str, ...], source: str, body: str, partition: str
) -> None:
    paths = {"images": tmp_path / "images", "table": tmp_path / "t.csv"}
    path = paths.get(what, tmp_path / "arrays.npz")
    {"images": lambda: folder_by_class(path, 33), "table": lambda: table(path)}.get(what, lambda: arrays(path, what))()
    said = torso("data", "look", str(path), *words, "--out", "made")
    assert said.status == 0, said.err
    tree = tomllib.loads(Path("made/config.toml").read_text(encoding="utf-8"))
    assert (tree["data"]["source"], tree["model"]["body"], tree["data"]["partition"]) == (source, body, partition)
    assert tree["data"].get("size", 0) == (32 if what == "images" else 0)
    assert simulate(Config.load("made/config.toml")).roster.clients >= 2


@pytest.mark.parametrize("names", [("one",), ("one", "other")])
def test_small_and_lopsided_clients_train(tmp_path: Path, names: tuple[str, ...]) -> None:
    """One client alone; one with a single class, a class of a single image, a class that no test image has."""
    for name, label, i in (
        [("one", "a", i) for i in range(6)] + [("one", "b", 0)] + [(names[-1], "c", i) for i in (0, 1)]
    ):
        folder = tmp_path / "data" / name / label
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 40 * i).save(folder / f"{i}.png")
    data = {"source": "folder", "root": str(tmp_path / "data"), "partition": "by-client", "clients": 0}
    train = {"rounds": 1, "fraction": 1.0}
    result = library.run(Config(method="fedbabu", data=data, train=train, personalize={"epochs": 1}))
    assert result.ok
    assert (result.names, result.class_names) == (names, ("a", "b", "c"))
    assert np.isfinite(result.accuracy["personalized"].mean)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing",), "'nothing' does not exist. Expected: a folder of images"),
        (("notes.txt",), "'notes.txt' is a file of no known format"),
        (("empty",), "holds no images"),
        (("t.csv",), "needs data.csv.names. Name the column of the classes: --label COLUMN"),
        (("t.csv", "--label", "stat"), "did you mean 'state'?"),
        (("t.csv", "--label", "state", "--out", "notes.txt"), "--out 'notes.txt' is a file"),
        (("t.csv", "--label", "state", "--set", "data.siz=3"), "data.siz"),
    ],
)
def test_what_will_not_do(torso: Torso, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    table(tmp_path / "t.csv")
    said = torso("data", "look", *words)
    assert (said.status, said.out) == (2, "")
    assert message in said.err
    assert not list(tmp_path.glob("*.toml"))


def test_a_class_that_only_the_test_part_has_is_told_not_refused(torso: Torso, tmp_path: Path) -> None:
    for name in ("train/a/1", "train/b/1", "test/a/2", "test/new/1"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), len(name)).save(tmp_path / "d" / f"{name}.png")
    said = torso("data", "look", "d")
    assert said.status == 0
    assert "Classes in test only: new. A run refuses them" in said.out
