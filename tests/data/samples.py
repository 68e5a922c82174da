"""Helpers of the tests in this folder: options, small data sets, paths of real files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torso.config import DataConfig
from torso.data.images import Dataset, Images


def options(**changes: Any) -> DataConfig:
    return DataConfig(**changes)


def toy(train: Any, test: Any = None, classes: int | None = None, writers: Any = None) -> Dataset:
    """A data set of 1×1 images with these labels. The pixel is the row number, so that rows can be told apart."""

    def split(labels: Any) -> Images:
        labels = np.asarray(labels, np.int64)
        by = None if writers is None else np.asarray(writers, np.int64)[: len(labels)]
        return Images((np.arange(len(labels)) % 256).astype(np.uint8).reshape(-1, 1, 1, 1), labels, by)

    test = train if test is None else test
    return Dataset("toy", split(train), split(test), classes or int(max(train)) + 1, (0.5,), (0.5,))


def even(classes: int, per_class: int, seed: int = 0) -> np.ndarray:
    """Shuffled labels, `per_class` of each class."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), per_class))


def shared(name: str) -> Path:
    """A file of the shared data folder (TORSO_SHARED, or `shared` beside or above the repository), or skip."""
    here = Path(__file__).resolve()
    roots = [Path(os.environ["TORSO_SHARED"])] if "TORSO_SHARED" in os.environ else [p / "shared" for p in here.parents]
    for root in roots:
        if (root / "data" / name).exists():
            return root / "data" / name
    pytest.skip(f"{name} is not here: set TORSO_SHARED to the folder that holds data/{name}")
