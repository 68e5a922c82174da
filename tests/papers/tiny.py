"""A made CIFAR-10 of a few hundred images, packed as the source reads it, and settings that make a table quick."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

QUICK = (
    "data.clients=10",
    "train.rounds=2",
    "train.local_epochs=1",
    "train.batch_size=10",
    "model.body=mlp",
    "personalize.epochs=1",
    "run.workers=1",
)


def tiny_cifar10(folder: Path, train: int = 20, test: int = 4) -> Path:
    """cifar10_jpeg.npz with so many images of each of the ten classes: a colour each, and noise."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (10, 1, 1, 3))
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", train), ("test", test)):
        labels = np.repeat(np.arange(10), count)
        files = []
        for label in labels:
            pixels = np.clip(colours[label] + rng.integers(-40, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            written = io.BytesIO()
            Image.fromarray(pixels).save(written, format="JPEG")
            files.append(written.getvalue())
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{split}_labels"] = labels
    np.savez(folder / "cifar10_jpeg.npz", **arrays)
    return folder
