"""Sources and partitions of the user: what is accepted, and what is refused with the key that named them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torso.data import build, load, partitions, sources
from torso.data.images import Dataset, Images
from torso.data.partitions import Partition
from torso.data.rows import Rows
from torso.errors import RequestError

from .samples import options

HALF = Images(np.arange(48, dtype=np.uint8).reshape(4, 4, 3, 1), np.array([0, 1, 0, 1]))
GOOD = Dataset("mine", HALF, HALF, 2)


def half(**changes: Any) -> Dataset:
    return replace(GOOD, train=replace(HALF, **changes))


def read(made: Any, monkeypatch: pytest.MonkeyPatch, root: str = "") -> Dataset:
    monkeypatch.setitem(sources, "mine", made if callable(made) else lambda options, seed: made)
    return load(options(source="mine", root=root), 0)


def test_what_means_the_same_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images without channels, labels of another width, a torch tensor: all become the same stored format."""
    flat = half(images=HALF.images[..., 0], labels=HALF.labels.astype(np.int32))
    for made in (GOOD, flat, half(images=torch.from_numpy(HALF.images)), half(images=HALF.images[::-1][::-1])):
        found = read(made, monkeypatch).train
        assert (found.images.dtype, found.images.shape, found.labels.dtype) == (np.uint8, (4, 4, 3, 1), np.int64)
        assert (found.images == HALF.images).all()


def no_arguments() -> Dataset:
    return GOOD


def raises(options: Any, seed: int) -> Dataset:
    raise ValueError("the server\nis down")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ((HALF, HALF), r" gave tuple\. Expected: torso\.data\.images\.Dataset\(name, train, test, classes\)"),
        (replace(GOOD, train=(1, 2)), " gave a Dataset of tuple"),
        (half(images=HALF.images / 255), r", train: images are float64 \[4, 4, 3, 1\]\. Expected: uint8"),
        (half(images=HALF.images.ravel()), r", train: images are uint8 \[48\]\. Expected: uint8"),
        (half(labels=np.zeros(4)), ", train: labels are float64"),
        (half(labels=np.zeros(3, int)), ", train: 4 images but 3 labels"),
        (half(labels=np.array([0, 1, 2, 0])), r": train label 2 \(image 2\) is not a class\. Expected: 0 to 1"),
        (half(images=HALF.images[:, :2]), ": train images are 2×3 with 1 channel but test images 4×3"),
        (replace(GOOD, mean=(0.5, 0.5), std=(1.0, 1.0)), r": mean = \(0\.5, 0\.5\) .* with 1 channels"),
        (no_arguments, r" fails: TypeError: no_arguments\(\) takes 0 .* Expected: a function of \(options, seed\)"),
        (raises, r" fails: ValueError: the server is down \(test_own_parts\.py, line \d+\)"),
    ],
)
def test_what_a_source_must_not_give(made: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=rf"^data\.source = 'mine'{words}"):
        read(made, monkeypatch)


def test_the_file_is_named_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = {"train_images": HALF.images, "train_labels": HALF.labels, "test_images": HALF.images}
    np.savez(tmp_path / "bad.npz", **bad, test_labels=HALF.labels + 7)
    with pytest.raises(RequestError, match=r"^data\.source = 'npz' \(data\.root = '.*bad\.npz'\): test label 7"):
        load(options(source="npz", root=str(tmp_path / "bad.npz")), 0)


def dealt(train: Rows, test: Rows) -> Callable[..., Partition]:
    return lambda dataset, options, seed: Partition(train, test)


@pytest.mark.parametrize(
    ("deal", "words"),
    [
        (lambda dataset, options, seed: [[0], [1]], r" gave list\. Expected: torso\.data\.partitions\.Partition"),
        (lambda dataset: None, r" fails: TypeError: .* Expected: a function of \(dataset, options, seed\)"),
        (dealt(Rows.from_lists([[0], [1]]), Rows.from_lists([[0]])), " deals training data to 2 clients and test "),
        (
            dealt(Rows.from_lists([[0], [4]]), Rows.from_lists([[0], [1]])),
            ": rows of train are 0 to 4. Expected: 0 to 3",
        ),
        (dealt(Rows.from_lists([[0], [1]]), Rows.from_lists([[-1], [1]])), ": rows of test are -1 to 1"),
        (dealt(Rows.from_lists([[0], []]), Rows.from_lists([[0], []])), " leaves client 1 without training samples"),
    ],
)
def test_what_a_partition_must_not_give(deal: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources, "mine", lambda options, seed: GOOD)
    monkeypatch.setitem(partitions, "mine", deal)
    with pytest.raises(RequestError, match=rf"^data\.partition = 'mine'{words}"):
        build(options(source="mine", partition="mine"), 0, torch.device("cpu"))
