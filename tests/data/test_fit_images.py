"""Images fitted to what a body wants: expected values by hand, and Pillow as the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.samples import options

from torso.data import Federation, build, fit_images
from torso.data.fit import fitted
from torso.data.fit_images import as_kind, fitted_kind, resized
from torso.data.images import Dataset, Images
from torso.data.inputs import Pixels
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError

BY = "model.body = 'their/net'"
PHOTOS = Wants(BY, 12, 3, (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
CPU = torch.device("cpu")


def dataset(channels: int = 3, height: int = 8, width: int = 6, count: int = 70) -> Dataset:
    rng = np.random.default_rng(0)
    parts = [
        Images(rng.integers(0, 256, (n, height, width, channels), dtype=np.uint8), np.arange(n) % 2) for n in (count, 4)
    ]
    mean, std = tuple(np.linspace(0.1, 0.4, channels)), (0.25,) * channels
    return Dataset("toy", *parts, 2, mean, std, input=Pixels(channels, height, width, mean, std))


@pytest.mark.parametrize("channels", [1, 3, 2])
def test_resizing_is_pillows_image_by_image(channels: int) -> None:
    images = dataset(channels).train.samples
    found = resized(images, 5, 9)
    for place in (0, 63, 64, 69):  # on both sides of a border between two threads' images
        for layer in range(channels):
            alone = Image.fromarray(images[place, ..., layer]).resize((9, 5), Image.Resampling.BILINEAR)
            assert np.array_equal(found[place, ..., layer], np.asarray(alone))
    assert found.shape == (70, 5, 9, channels)


def test_colour_photographs_are_resized_and_normalised_and_the_data_say_so() -> None:
    found = fitted(dataset(), options(), PHOTOS)
    assert found.kind == Pixels(3, 12, 12, PHOTOS.mean, PHOTOS.std)
    assert found.train.samples.shape == (70, 12, 12, 3)
    assert np.array_equal(found.train.samples, resized(dataset().train.samples, 12, 12))
    assert found.remarks == (
        f"images of 8×6 with 3 channels are resized to 12×12 (not in proportion) and normalised as {BY} expects",
    )


def test_grey_becomes_three_equal_channels_and_alpha_is_dropped() -> None:
    grey = fitted(dataset(1), options(), replace(PHOTOS, size=0))
    assert np.array_equal(grey.train.samples, np.repeat(dataset(1).train.samples, 3, axis=3))
    assert grey.remarks == (
        f"images of 8×6 with 1 channel are converted from grey to three equal channels and normalised as {BY} expects",
    )
    clear = fitted(dataset(4), options(), Wants(BY, channels=3))
    assert np.array_equal(clear.train.samples, dataset(4).train.samples[..., :3])
    assert clear.remarks == (f"images of 8×6 with 4 channels are stripped of their alpha channel as {BY} expects",)
    assert isinstance(clear.kind, Pixels)
    assert clear.kind.mean == dataset(4).mean[:3]
    bare = fitted(dataset(1), options(), Wants(BY, channels=3)).kind
    assert isinstance(bare, Pixels)
    assert bare.mean == dataset(1).mean * 3
    for channels in (2, 5):
        with pytest.raises(RequestError, match=rf"{BY} takes images with 3 channels, and the data are .*1, 3 or 4"):
            fitted(dataset(channels), options(), PHOTOS)


def test_statistics_may_be_kept_and_a_size_may_be_set() -> None:
    kind = Pixels(3, 8, 8, (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    assert fitted_kind(kind, options(normalize="statistics"), PHOTOS) == replace(kind, height=12, width=12)
    assert fitted_kind(kind, options(size=20), PHOTOS) == Pixels(3, 20, 20, PHOTOS.mean, PHOTOS.std)


def test_who_wants_nothing_changes_nothing() -> None:
    given = dataset()
    assert fitted(given, options(), ANYTHING) is given
    kind = given.kind
    assert isinstance(kind, Pixels)
    assert np.shares_memory(as_kind(given.train.samples, kind), given.train.samples)


def test_images_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_images, "_free_bytes", lambda: 10_000)
    with pytest.raises(RequestError, match=r"70 images of 12×12, as .* take 0.0 GB.*Set data.size to less, such as 6"):
        fitted(dataset(), options(), PHOTOS)


def synthetic(**more: object) -> Federation:
    small = {"samples": 40, "test_samples": 10, "size": 8, "classes": 2}
    return build(options(source="synthetic", clients=2, partition="iid", synthetic=small, **more), 0, CPU)


def test_data_size_is_for_every_source_of_images() -> None:
    plain, large = synthetic(), synthetic(size=11)
    assert large.input.shape == (1, 11, 11)
    assert np.array_equal(large.train.samples.numpy(), resized(plain.train.samples.numpy(), 11, 11))
    assert large.remarks == plain.remarks == ()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Photographs of several sizes in two classes."""
    rng = np.random.default_rng(0)
    for place in range(12):
        folder = tmp_path / "ab"[place % 2]
        folder.mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (10 + place, 14, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{place}.png")
    return tmp_path


def test_files_of_different_sizes_are_read_at_the_size_that_a_body_wants(pictures: Path) -> None:
    asked = options(source="folder", root=str(pictures), clients=2, partition="iid")
    with pytest.raises(RequestError, match=r"one size for all images, or data\.size"):
        build(asked, 0, CPU)
    plain = build(asked, 0, CPU, wants=Wants(by=BY, usual=8))  # a body without weights, which was made for a size
    assert (plain.input.shape, plain.augment) == ((3, 8, 8), "flip")
    assert plain.remarks[0] == f"images are resized to 8×8 as {BY} expects"
    found = build(asked, 0, CPU, wants=PHOTOS)
    assert found.input == Pixels(3, 12, 12, PHOTOS.mean, PHOTOS.std)
    assert found.augment == "flip"
    assert found.remarks[0] == f"images are resized to 12×12 and normalised as {BY} expects"
    assert found.remarks[1].startswith("data.augment = 'auto' mirrors half of the training images")
    asked = asked.model_copy(update={"augment": "none", "size": 9})
    found = build(asked, 0, CPU, wants=PHOTOS)
    assert (found.input.shape, found.augment) == ((3, 9, 9), "none")
    assert found.remarks == (f"images of 9×9 with 3 channels are normalised as {BY} expects",)
