"""What weights that Torso wrote expect of images: those of a run folder, or of an exported file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torso.data.wants import Wants
from torso.reading import parse_toml

RATE = 0.01
"""Local learning rate with which pre-trained weights are fine-tuned unless somebody sets one."""
GENERATIONS = 5  # of runs that began with the weights of others
OURS = "body."  # what stands before the names of a body's tensors in a file or run of Torso


def wants_of_run(folder: Path, ask: Callable[[str], Wants]) -> Wants | None:
    """What the weights that a run began with expect, at the size that it has set. None: it is no run folder.

    `ask`: what is wanted under the run's own `model.weights`."""
    try:
        tree = parse_toml((folder / "config.toml").read_text(encoding="utf-8"))
        weights, size = str(tree["model"]["weights"]), int(tree["data"].get("size", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found = ask(weights)
    return replace(found, size=size or found.size, lr=RATE)


def wants_of_model(about: Mapping[str, str], by: str) -> Wants | None:
    """What the model of an exported file was trained with. None: the file does not say."""
    try:
        channels, height, width = json.loads(about["image"])
        mean, std = (tuple(map(float, json.loads(about[key]))) for key in ("mean", "std"))
    except (KeyError, ValueError, TypeError):
        return None
    return Wants(by, height if height == width else 0, channels, mean, std, lr=RATE)
