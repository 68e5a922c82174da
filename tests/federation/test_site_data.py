"""A client's own files: what it has, and what it tells of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from torso import Clients, RequestError
from torso.config import CsvConfig, DataConfig
from torso.data.images import statistics
from torso.data.inputs import Floats, Pixels, Tokens
from torso.data.naming import in_natural_order
from torso.federation.description import Description, by_class_name
from torso.federation.site_data import read_site, read_test

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 4, 5, 3), dtype=np.uint8)
LABELS = np.arange(20) % 3


def npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **{key: np.asarray(array) for key, array in arrays.items()})
    return path


def write_images(folder: Path, images: np.ndarray, labels: np.ndarray, names: list[str]) -> None:
    from PIL import Image

    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / names[label] / f"{place:03}.png")


def test_an_npz_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = npz(
        tmp_path / "secret-name.npz",
        train_images=IMAGES[:12],
        train_labels=LABELS[:12],
        test_images=IMAGES[12:],
        test_labels=LABELS[12:],
        class_names=["cat", "dog", "emu", "yak"],
        mean=[0.1, 0.2, 0.3],
        std=[1.0, 0.5, 0.25],
    )
    site = read_site(path, DataConfig(), "clinic-1")
    for part, images, labels in ((site.train, IMAGES[:12], LABELS[:12]), (site.test, IMAGES[12:], LABELS[12:])):
        assert part.samples.dtype == np.uint8
        assert np.array_equal(part.samples, images)
        assert np.array_equal(part.labels, labels)
    assert site.classes == ("cat", "dog", "emu", "yak")
    assert site.input == Pixels(3, 4, 5, (0.1, 0.2, 0.3), (1.0, 0.5, 0.25))
    told = site.description("clinic-1").model_dump_json()
    assert "secret" not in told  # the name of a file may say more than its owner wants
    assert set(json.loads(told)) == {
        *("name", "torso", "torch", "classes", "input", "columns"),
        *("train_samples", "test_samples", "augment", "dataset"),
    }
    assert Description.read(told, "clinic-1") == site.description("clinic-1")


@pytest.mark.parametrize("source", ["npz", "folder"])
def test_without_a_test_part_one_is_held_out_by_the_clients_name(source: str, tmp_path: Path) -> None:
    order = np.argsort(LABELS, kind="stable")  # as a folder is read
    path = tmp_path / "data.npz"
    if source == "npz":
        npz(path, train_images=IMAGES[order], train_labels=LABELS[order])
    else:
        path = tmp_path / "data"
        write_images(path, IMAGES, LABELS, ["cat", "dog", "emu"])
    site, other = (read_site(path, DataConfig(), name) for name in ("clinic-1", "clinic-2"))
    clients = Clients({"clinic-1": (IMAGES[order], LABELS[order])})
    assert np.array_equal(site.train.samples, clients.train[0].samples)
    assert np.array_equal(site.test.labels, clients.test[0].labels)
    assert (len(site.train), len(site.test)) == (16, 4)
    assert not np.array_equal(site.test.samples, other.test.samples)
    assert site.classes == (("0", "1", "2") if source == "npz" else ("cat", "dog", "emu"))


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    write_images(tmp_path / "train", IMAGES[:12], LABELS[:12], ["b", "a", "c"])
    write_images(tmp_path / "test", IMAGES[12:], LABELS[12:], ["b", "a", "c"])
    site = read_site(tmp_path, DataConfig(source="folder", size=2), "k")
    assert site.classes == ("a", "b", "c")
    assert site.input == Pixels(3, 2, 2)
    assert site.test.labels.tolist() == sorted(np.array([1, 0, 2])[LABELS[12:]])
    assert np.array_equal(read_test(tmp_path, DataConfig(size=2)).test.samples, site.test.samples)


def test_a_table_has_the_texts_of_its_labels(tmp_path: Path) -> None:
    rows = "".join(f"{k},{k % 7},{['sick', 'well'][k % 2]}\n" for k in range(20))
    (tmp_path / "t.csv").write_text("age,weight,state\n" + rows)
    site = read_site(tmp_path / "t.csv", DataConfig(csv=CsvConfig(label="state", drop=("weight",))), "k")
    assert site.classes == ("sick", "well")
    assert site.input == Floats((1,), names=("age",))
    assert (len(site.train), len(site.test)) == (16, 4)
    assert len(read_test(tmp_path / "t.csv", DataConfig(csv=CsvConfig(label="state"))).test) == 20
    total = site.train.samples.astype(np.float64).sum()
    assert site.moments["total"].tolist() == [total]
    assert site.moments["count"].tolist() == [16.0]


def test_one_sample_is_enough(tmp_path: Path) -> None:
    site = read_site(npz(tmp_path / "a.npz", train_images=IMAGES[:1], train_labels=[7]), DataConfig(), "k")
    assert (len(site.train), len(site.test), site.classes[-1]) == (1, 0, "7")
    assert site.test.samples.shape == (0, 4, 5, 3)
    (tmp_path / "t.csv").write_text("age,label\n3,sick\n")
    site = read_site(tmp_path / "t.csv", DataConfig(), "k")
    assert (len(site.train), len(site.test), site.classes) == (1, 0, ("sick",))


def test_empty_test_arrays_mean_no_test_part(tmp_path: Path) -> None:
    arrays = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES[:0], "test_labels": LABELS[:0]}
    site = read_site(npz(tmp_path / "a.npz", **arrays), DataConfig(), "k")
    assert (len(site.train), len(site.test)) == (20, 0)


def test_tokens_and_numbers_with_names(tmp_path: Path) -> None:
    ids = RNG.integers(0, 9, (6, 4))
    path = npz(tmp_path / "a.npz", train_samples=ids, train_labels=LABELS[:6], vocabulary=12, pad=0)
    site = read_site(path, DataConfig(), "k")
    assert (site.input, site.moments) == (Tokens(4, 12, 0), {})
    assert site.train.samples.dtype == np.int32
    numbers = RNG.normal(size=(6, 2)).astype(np.float32)
    path = npz(tmp_path / "b.npz", train_samples=numbers, train_labels=LABELS[:6], feature_names=["age", "weight"])
    assert read_site(path, DataConfig(), "k").input == Floats((2,), names=("age", "weight"))


def test_sums_of_images_are_exact_and_give_their_statistics() -> None:
    from torso.data.images import Images
    from torso.federation.site_data import SiteData

    site = SiteData(Images(IMAGES, LABELS), Images(IMAGES[:0], LABELS[:0]), ("a", "b", "c"), Pixels(3, 4, 5))
    count, total, squares = (site.moments[name].numpy() for name in ("count", "total", "squares"))
    assert all(site.moments[name].dtype == torch.float64 for name in site.moments)
    by_hand = IMAGES.reshape(-1, 3).astype(np.int64)
    assert total.tolist() == by_hand.sum(0).tolist()
    assert squares.tolist() == (by_hand**2).sum(0).tolist()
    mean, std = statistics(IMAGES)
    np.testing.assert_allclose(total / count / 255, mean, rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(squares / count - (total / count) ** 2) / 255, std, rtol=1e-9)


def test_what_is_told_has_no_sample_and_no_class_counts(tmp_path: Path) -> None:
    site = read_site(npz(tmp_path / "a.npz", train_images=IMAGES, train_labels=LABELS), DataConfig(), "k")
    other = read_site(
        npz(tmp_path / "b.npz", train_images=IMAGES, train_labels=LABELS[::-1] * 0 + 2), DataConfig(), "k"
    )
    assert site.description("k") == other.description("k")  # other labels, and nobody can tell
    assert {name: tuple(tensor.shape) for name, tensor in site.moments.items()} == dict.fromkeys(
        ("count", "total", "squares"), (3,)
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"a\.npz has no train_"),
        ({"train_images": IMAGES}, r"has no train_labels"),
        ({"test_images": IMAGES, "test_labels": LABELS}, r"has no train_images, train_labels"),
        ({"train_images": IMAGES[:0], "train_labels": LABELS[:0]}, r"there are no images\. Expected: at least one"),
        ({"train_images": IMAGES, "train_labels": LABELS + 99_999}, r"there is a label 100001\. Expected: classes num"),
        ({"train_images": IMAGES, "train_labels": LABELS, "class_names": ["a", "b"]}, r"label 2 .* is not a class"),
        ({"train_images": IMAGES, "train_labels": LABELS, "class_names": ["a", "b", "a"]}, r"class_names are .* 2 of"),
        ({"train_images": IMAGES, "train_labels": LABELS, "mean": [0.1] * 3}, r"mean and std are .* Expected: both"),
        ({"train_images": IMAGES, "train_labels": LABELS, "mean": [0.1], "std": [0.0]}, r"std above 0"),
        ({"train_images": IMAGES, "train_labels": LABELS, "mean": [0.1], "std": [1.0]}, r"a number for each channel"),
        ({"train_samples": LABELS, "train_labels": LABELS}, r"may be numbers or token ids"),
    ],
)
def test_a_wrong_npz_is_refused_in_words(arrays: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        read_site(npz(tmp_path / "a.npz", **arrays), DataConfig(), "k")


def test_wrong_paths_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"nothing' does not exist\. Expected: an \.npz file"):
        read_site(tmp_path / "nothing", DataConfig(), "k")
    with pytest.raises(RequestError, match="holds no images"):
        read_site(tmp_path, DataConfig(), "k")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(RequestError, match="file of no known format"):
        read_site(tmp_path / "notes.txt", DataConfig(), "k")
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(RequestError, match=r"a\.npz cannot be read, it may be damaged"):
        read_site(tmp_path / "a.npz", DataConfig(), "k")
    (tmp_path / "cats" / "cat").mkdir(parents=True)
    (tmp_path / "cats" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(RequestError, match=r"no image can be read: .*1\.png \(not an image\)"):
        read_site(tmp_path / "cats", DataConfig(), "k")
    write_images(tmp_path / "half" / "test", IMAGES[:2], LABELS[:2], ["cat", "dog", "emu"])
    with pytest.raises(RequestError, match="has a folder test and no folder train"):
        read_site(tmp_path / "half", DataConfig(), "k")


def test_natural_orders() -> None:
    assert in_natural_order(["client-10", "client-2", "a", "client-02", "Zoe"]) == [
        "Zoe",
        "a",
        "client-02",
        "client-2",
        "client-10",
    ]
    assert by_class_name(["cat", "10", "9", "-1", "2.5", "Dog", "9"]) == ["-1", "2.5", "9", "10", "Dog", "cat"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../x"}, r"clinic: name = '\.\./x' is not accepted"),
        ({"classes": []}, "clinic: classes"),
        ({"classes": ["a\x1b[31m"]}, "can be printed"),
        ({"train_samples": -1}, "clinic: train_samples = -1"),
        ({"train_samples": True}, "clinic: train_samples = True"),
        ({"input": {"kind": "tokens", "length": 3, "vocabulary": 2, "pad": 5}}, "clinic: pad = 5"),
        ({"input": {"kind": "secret"}}, "clinic: input"),
        ({"class_counts": [1, 2]}, r"clinic: class_counts = \[1, 2\] is not accepted: Extra"),
    ],
)
def test_a_wrong_description_is_refused_in_words(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    site = read_site(npz(tmp_path / "a.npz", train_images=IMAGES, train_labels=LABELS), DataConfig(), "k")
    tree = json.loads(site.description("k").model_dump_json()) | changes
    with pytest.raises(RequestError, match=message):
        Description.read(json.dumps(tree), "clinic")
