"""Arrays of any dtype in an .npz file: the kind of input that they become, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torso.data import Dataset, load, sources
from torso.data.images import Images, Samples
from torso.data.inputs import Floats, Pixels, Tokens
from torso.errors import RequestError

from .samples import options

LABELS = {"train_labels": np.array([0, 1, 0]), "test_labels": np.array([1])}
IDS = {"train_samples": np.array([[5, 6, 0], [7, 0, 0], [5, 5, 5]]), "test_samples": np.array([[6, 0]])}
MASK = {"train_mask": np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]]), "test_mask": np.array([[1, 1]])}


def read(tmp_path: Path, npz: dict[str, Any] | None = None, **arrays: Any) -> Dataset:
    np.savez(tmp_path / "mine.npz", **{**LABELS, **arrays})
    return load(options(source="npz", root=str(tmp_path / "mine.npz"), npz=npz or {}), 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_of_any_shape(tmp_path: Path, dtype: Any) -> None:
    train = np.arange(18, dtype=dtype).reshape(3, 2, 3)
    found = read(tmp_path, train_samples=train, test_samples=train[:1])
    assert found.input == Floats((2, 3))
    assert (found.train.samples.dtype, found.train.samples.tolist()) == (np.float32, train.tolist())


def test_bytes_are_pixels_unless_told(tmp_path: Path) -> None:
    train = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    found = read(tmp_path, train_samples=train, test_samples=train[:1])
    assert isinstance(found.train, Images)
    assert isinstance(found.input, Pixels)
    assert found.input.shape == (1, 2, 2)
    numbers = read(tmp_path, {"kind": "floats"}, train_samples=train, test_samples=train[:1])
    assert numbers.input == Floats((2, 2))


def test_sequences_with_a_mask(tmp_path: Path) -> None:
    """Ids 0 to 7; padding gets an id that no token has, 8, so that the token 0 of the test sequence stays one."""
    found = read(tmp_path, **IDS, **MASK)
    assert found.input == Tokens(3, 9, pad=8)
    assert found.train.samples.tolist() == [[5, 6, 8], [7, 8, 8], [5, 5, 5]]
    assert found.test.samples.tolist() == [[6, 0, 8]]


def test_sequences_that_are_told(tmp_path: Path) -> None:
    found = read(tmp_path, {"kind": "tokens"}, **IDS)
    assert found.input == Tokens(3, 8, pad=0)
    assert found.test.samples.tolist() == [[6, 0, 0]]
    assert read(tmp_path, {"kind": "tokens", "pad": 30}, **IDS).input == Tokens(3, 31, pad=30)


@pytest.mark.parametrize(
    ("npz", "arrays", "message"),
    [
        ({}, IDS, r"train_samples are int64 \[3, 3\] without a train_mask.*data.npz.kind = floats or tokens"),
        ({}, {**IDS, "train_mask": MASK["train_mask"]}, "has a mask for one split only"),
        ({"pad": 0}, {**IDS, **MASK}, "test: the mask takes place 1 of sequence 0 for a token, and its id is that of"),
        ({}, {"train_samples": np.ones((3, 2))}, "has no test_samples"),
        (
            {},
            {"train_samples": np.ones((3, 2)), "test_samples": np.ones((1, 3))},
            "train samples are rows of 2 numbers but test samples rows of 3 numbers. Expected: one size",
        ),
        (
            {"kind": "tokens"},
            {"train_images": np.zeros((3, 2, 2), np.uint8), "test_images": np.zeros((1, 2, 2), np.uint8)},
            "data.npz.kind = 'tokens' is of train_samples and test_samples",
        ),
    ],
)
def test_arrays_that_will_not_do(tmp_path: Path, npz: dict[str, Any], arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(tmp_path, npz, **arrays)


# a source of somebody's own


def own(monkeypatch: pytest.MonkeyPatch, train: Any, **fields: Any) -> Dataset:
    half = Samples(train, np.array([0, 1]))
    made = Dataset("mine", half, half, 2, **fields)
    monkeypatch.setitem(sources, "mine", lambda options, seed: made)
    return load(options(source="mine"), 0)


def test_a_source_of_ones_own_gives_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, ids = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1, 2], [3, 0]])
    assert own(monkeypatch, rows).input == Floats((2,))
    constants = {"mean": (1.0, 2.0), "std": (3.0, 4.0)}
    assert own(monkeypatch, rows, **constants).input == Floats((2,), **constants)
    assert own(monkeypatch, ids, input=Tokens(3, 4)).train.samples.tolist() == [[1, 2, 0], [3, 0, 0]]
    with pytest.raises(RequestError, match=r"samples are int64 \[2, 2\], and integers may be token ids or numbers"):
        own(monkeypatch, ids)
    with pytest.raises(RequestError, match=r"mean = \(1.0,\) and std = \(1.0,\) of samples with 2 features"):
        own(monkeypatch, rows, mean=(1.0,), std=(1.0,))
    with pytest.raises(RequestError, match="3 names of features for rows of 2 numbers"):
        own(monkeypatch, rows, input=Floats((2,), names=("a", "b", "c")))
    with pytest.raises(RequestError, match=r"gave input = 'rows'. Expected: Pixels, Floats, Tokens or Texts"):
        own(monkeypatch, rows, input="rows")
