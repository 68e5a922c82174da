"""A run knows its data: what is changed behind its back is refused by client and split, unless somebody accepts it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Torso
from tests.runs.samples import Heard, StopAfter, files, tiny

import torso as library
from torso import Config
from torso.data import build
from torso.data.fingerprint import Fingerprint
from torso.data.sources.made import digits
from torso.errors import ChangedData, MissingData, RequestError
from torso.results.data_file import DataFile, where_data_were
from torso.runs.devices import device_named
from torso.runs.run import Stopped

OWN = ("data.source=npz", "data.partition=by-client", "data.clients=0", "train.rounds=2", "measure.names=initial")
Arrays = dict[str, np.ndarray]


def arrays() -> Arrays:
    """Four clients with 30 training and 10 test images each."""
    data = digits(Config().data, 0)
    return {
        "train_images": data.train.samples[:120],
        "train_labels": data.train.labels[:120],
        "train_writers": np.arange(120) % 4,
        "test_images": data.test.samples[:40],
        "test_labels": data.test.labels[:40],
        "test_writers": np.arange(40) % 4,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data.npz, a run in `done` that has finished, and one in `half` that was stopped; data.root is relative."""
    place = tmp_path_factory.mktemp("made")
    np.savez(place / "data.npz", **arrays())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        config = tiny("fedper", *OWN, "data.root=data.npz")
        assert library.run(config, "done").ok
        listener = StopAfter(1)
        with pytest.raises(Stopped):
            library.run(config, "half", listener=listener, stop=listener.stop)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to be spoilt; without the folder that data.json remembers, so that data.root is looked for here."""
    shutil.copytree(made, tmp_path / "place")
    for name in ("done", "half"):
        path = tmp_path / "place" / name / "data.json"
        tree = json.loads(path.read_text())
        assert tree["root"] == str(made / "data.npz")
        path.write_text(json.dumps({**tree, "root": str(tmp_path / "place" / "data.npz")}))
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def change(how: Callable[[Arrays], object]) -> None:
    held = arrays()
    how(held)
    np.savez("data.npz", **held)


def labels_rotated(held: Arrays) -> None:
    held["train_labels"] = (held["train_labels"] + 1) % 10


def one_pixel(held: Arrays) -> None:
    held["test_images"] = held["test_images"].copy()
    held["test_images"][6, 3, 3] ^= 1  # writer 2


def one_sample_less(held: Arrays) -> None:
    for name in ("train_images", "train_labels", "train_writers"):
        held[name] = np.delete(held[name], 1, axis=0)  # writer 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            labels_rotated,
            r"client 0 \(writer-0\): its training samples or labels are others; .*; and 1 more\. Give",
        ),
        (
            one_pixel,
            r"client 2 \(writer-2\): its test samples or labels are others\. Give .*, or accept others with ",
        ),
        (one_sample_less, r"client 1 \(writer-1\): it had 30 training samples, and has 29\. Give"),
    ],
)
def test_changed_data_are_refused_by_client_and_split(how: Callable[[Arrays], object], said: str, place: Path) -> None:
    change(how)
    before = files(Path())
    with pytest.raises(ChangedData, match=said):
        library.run(Config.load("half/config.toml"), "half", resume=True)
    with pytest.raises(ChangedData, match=said):
        library.load("done")
    assert files(Path()) == before


def test_changed_data_can_be_accepted(place: Path) -> None:
    change(one_pixel)
    seen = Heard()
    config = Config.load("half/config.toml")
    assert library.run(config, "half", resume=True, listener=seen, accept_changed_data=True).ok
    assert (
        "the data have changed since the run began, as you accept: client 2 (writer-2): its test samples"
        in seen.notes[0]
    )
    assert library.load("half").network(2) is not None  # from now on, these are its data
    assert library.load("done", accept_changed_data=True).network(2) is not None


def test_changed_data_can_be_accepted_while_progress_is_shown(place: Path) -> None:
    change(one_pixel)
    assert library.run(Config.load("half/config.toml"), "half", resume=True, progress=True, accept_changed_data=True).ok


def test_the_command_line_refuses_and_accepts(torso: Torso, place: Path) -> None:
    change(labels_rotated)
    said = torso("export", "done", "--client", "3", "--out", "models")
    assert said.status == 2
    assert "the data are not those that the run in 'done' began with: client 0" in said.err
    assert not Path("models").exists()
    said = torso("run", "--out", "half", "--resume")
    assert said.status == 2
    assert "or accept others with torso run --out half --resume --accept-changed-data (accept_changed_data" in said.err
    assert torso("export", "done", "--client", "3", "--out", "models", "--accept-changed-data").status == 0
    np.savez("mine.npz", images=arrays()["test_images"], labels=arrays()["test_labels"])
    for command in ("predict", "personalize"):
        asked = (command, "done", "--data", "mine.npz")
        assert torso(*asked).status == 2
        said = torso(*asked, "--accept-changed-data")
        assert said.status == 0, said.err


def test_a_run_of_an_older_version_goes_on_unchecked(place: Path) -> None:
    change(one_pixel)
    Path("half/data.json").unlink()
    assert library.run(Config.load("half/config.toml"), "half", resume=True).ok
    assert Path("half/data.json").exists()


def test_a_relative_root_is_found_from_another_folder(
    made: Path, tmp_path: Path, torso: Torso, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "half", "half")
    assert torso("run", "--out", "half", "--resume").status == 0
    assert 'root = "data.npz"' in Path("half/config.toml").read_text()
    assert torso("export", str(made / "done"), "--generic", "--out", "models").status == 0


def test_a_root_that_is_gone_is_said_with_the_way_out(torso: Torso, place: Path, tmp_path: Path) -> None:
    Path("data.npz").rename(tmp_path / "moved.npz")
    said = torso("export", "done", "--out", "models")
    assert said.status == 2
    assert "data.root = 'data.npz' does not exist in '/" in said.err
    assert "If the data have moved, say where they are: --data-root" in said.err
    assert torso("export", "done", "--out", "models", "--data-root", str(tmp_path / "moved.npz")).status == 0
    with pytest.raises(MissingData, match=r"'nowhere' does not exist in '/") as caught:
        library.load("done", data_root="nowhere")
    assert "--data-root" not in str(caught.value)


def test_a_damaged_data_file_is_named(torso: Torso, place: Path) -> None:
    Path("half/data.json").write_text('{"fingerprint": {"format": 7}}')
    said = torso("run", "--out", "half", "--resume")
    assert said.status == 2
    assert "half/data.json' is damaged (ValueError: format 7, this version reads 1)" in said.err


@pytest.mark.parametrize(
    "change",
    [{"clients": "4"}, {"clients": float("inf")}, {"kind": ["x"] * 3000}, {"train": 7}, {"format": [1] * 3000}],
    ids=str,
)
def test_words_where_numbers_belong_in_a_data_file(change: dict[str, object], tmp_path: Path) -> None:
    good = Fingerprint._made(build(tiny("fedavg").data, 0, device_named("cpu"))).as_json()
    (tmp_path / "data.json").write_text(json.dumps({"fingerprint": {**good, **change}}))
    with pytest.raises(RequestError, match=r"data.json' is damaged \(") as caught:
        DataFile.read(tmp_path)
    assert len(str(caught.value)) < 500


def test_a_root_that_no_path_can_be_is_not_looked_for(tmp_path: Path) -> None:
    good = Fingerprint._made(build(tiny("fedavg").data, 0, device_named("cpu")))
    for root in ("x" * 10_000, "a\0b"):
        DataFile(good, root).write(tmp_path)
        assert where_data_were(tmp_path, tiny("fedavg")) == tiny("fedavg")
    (tmp_path / "data.json").write_text(json.dumps({"fingerprint": good.as_json(), "root": [1]}))
    with pytest.raises(RequestError, match="its root is no text"):
        DataFile.read(tmp_path)


def test_many_clients_share_a_part_and_large_data_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torso.data.fingerprint._BLOCKS", 4)
    monkeypatch.setattr("torso.data.fingerprint._BYTES", 50_000)
    config = tiny("fedavg").data
    one, other = (Fingerprint._made(build(config, seed, device_named("cpu"))) for seed in (0, 1))
    assert (one.block, one.every) == (3, 3)  # 10 clients in 4 parts, 115,008 bytes
    assert [len(one.train), len(one.test)] == [5, 5]
    assert sum(n for n, _ in one.train) == 1442
    assert one.differences(one) == ""
    assert one.differences(other).startswith("one of the clients 0 to 2: it had ")
    assert Fingerprint.from_json(json.loads(json.dumps(one.as_json()))) == one
