"""Digits with names of classes, as arrays and as image files, and small runs on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

import torso

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SETS = (
    *("data.source=npz", "data.clients=4", "data.partition=iid", "train.rounds=3", "train.fraction=1.0"),
    *("train.local_epochs=3", "train.lr=0.1", "personalize.epochs=2", "personalize.lr=0.05", "run.workers=1"),
    "measure.names=initial",
)


@cache
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    found = load_digits()
    return (found.images * 255 / 16).astype(np.uint8), found.target.astype(np.int64)


def trained(folder: Path, method: str, *sets: str, classes: int = 10) -> Path:
    """The folder of a run on the first 600 digits, those of the first classes alone."""
    images, labels = digits()
    few = np.flatnonzero(labels < classes)[:600]
    test = few[:40]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "data.npz",
        train_images=images[few],
        train_labels=labels[few],
        test_images=images[test],
        test_labels=labels[test],
        class_names=np.array(NAMES[:classes]),
    )
    config = torso.Config.load(None, [f"method.name={method}", *SETS, f"data.root={folder / 'data.npz'}", *sets])
    assert torso.run(config, folder / "run").ok
    return folder / "run"


def write_images(folder: Path, classes: tuple[str, ...], each: int = 8) -> Path:
    """CLASS/0.png …: the last digits, which no run here has trained on."""
    images, labels = digits()
    for name in classes:
        rows = np.flatnonzero(labels == NAMES.index(name))[-each:]
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place, row in enumerate(rows):
            Image.fromarray(images[row]).save(folder / name / f"{place}.png")
    return folder
