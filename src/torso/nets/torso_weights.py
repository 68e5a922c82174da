"""What weights that Torso wrote expect of images: the weights of a run folder, or of an exported file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torso.data.wants import Wants
from torso.reading import parse_toml

FINE_TUNING_RATE = 0.01
"""Local learning rate with which pre-trained weights are fine-tuned, unless the user sets another."""
MAX_GENERATIONS = 5  # runs that began with each other's weights which are followed back, at most
BODY_PREFIX = "body."  # prefix of the names of a body's tensors in a file or run folder of Torso


def wants_of_run(folder: Path, ask: Callable[[str], Wants]) -> Wants | None:
    """What the first weights of a run expect, at the image size of the run. None: the folder is not a run folder.

    `ask`: called with the run's own `model.weights`, says what these expect."""
    try:
        tree = parse_toml((folder / "config.toml").read_text(encoding="utf-8"))
        weights, size = str(tree["model"]["weights"]), int(tree["data"].get("size", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found = ask(weights)
    return replace(found, size=size or found.size, lr=FINE_TUNING_RATE)


def wants_of_model(about: Mapping[str, str], by: str) -> Wants | None:
    """What the model of an exported file expects, from the file's metadata. None: the metadata do not say it.

    `by`: the setting that messages name."""
    try:
        channels, height, width = json.loads(about["image"])
        mean, std = (tuple(map(float, json.loads(about[key]))) for key in ("mean", "std"))
    except (KeyError, ValueError, TypeError):
        return None
    return Wants(by, height if height == width else 0, channels, mean, std, lr=FINE_TUNING_RATE)
