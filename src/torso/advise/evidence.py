"""Leaderboard results for settings with similar class counts, shown when the user gives only counts and no samples.

`python -m torso.advise.evidence` writes evidence.json again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torso.advise.candidates import ALONE, FEDAVG, default_candidates
from torso.advise.traits import Traits, traits_of
from torso.config import Config
from torso.data.images import Dataset, Samples
from torso.data.partitions import deal
from torso.papers.board import published
from torso.papers.board.definition import load
from torso.reading import parse_json

FILE = Path(__file__).with_name("evidence.json")
_ON_BOARD = {  # candidate → its name on the board
    "fedbabu-balanced": "linear-body-balanced-free",
    "fedbabu-balanced-dyn": "linear-body-balanced-dyn",
}
_EACH = 5000  # training samples of a class of CIFAR-10; a class of CIFAR-100 has a tenth


@cache
def evidence() -> list[dict[str, Any]]:
    """The settings of the leaderboard: traits of their clients, and personal accuracies of the candidates."""
    found: list[dict[str, Any]] = parse_json(FILE.read_text("utf-8"))
    return found


def nearest(traits: Traits, count: int = 2) -> list[dict[str, Any]]:
    """The settings with the most similar clients: by label shift and by number of samples."""

    def distance(setting: Mapping[str, Any]) -> float:
        of = setting["traits"]
        apart = abs(float(of["shift"]) - traits.shift) / 0.2
        return apart + abs(math.log10(max(traits.median, 1) / float(of["median"])))

    return sorted(evidence(), key=distance)[:count]


def lines(traits: Traits) -> list[str]:
    """The nearest settings with their results, in lines."""
    said = ["The most similar leaderboard settings (images, conv4, 50 rounds, 3 seeds; accuracy of own models in %):"]
    for setting in nearest(traits):
        of, personal = setting["traits"], setting["personal"]
        best = max((name for name in personal if name not in ("fedavg", "local-only")), key=lambda n: personal[n])
        said.append(
            f"  {setting['setting']} (label shift {of['shift']:.2f}, {of['median']:g} samples a client): FedAvg "
            f"with fine-tuning {personal['fedavg']:.1f}, training alone {personal['local-only']:.1f}, "
            f"{best} {personal[best]:.1f}"
        )
    return said


def make(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The content of evidence.json, from the rows of the leaderboard."""
    board, found = load(), []
    names = [FEDAVG.name, ALONE.name, *(candidate.name for candidate in default_candidates())]
    for setting, sets in board.settings.items():
        config = Config.load(None, [*sets, *(f"data.{key}={value}" for key, value in board.config["data"].items())])
        classes = 100 if config.data.source == "cifar100" else 10
        there = {
            row["method"]: row["personal"]["mean"] for row in rows if row["setting"] == setting and row["personal"]
        }
        personal = {name: there[_ON_BOARD.get(name, name)] for name in names if _ON_BOARD.get(name, name) in there}
        traits = traits_of(_counts(config, classes)).as_json()
        found.append({"setting": setting, "traits": traits, "personal": personal})
    return found


def _counts(config: Config, classes: int) -> Any:
    """Training samples by client and class as the setting deals them. In CIFAR all classes have the same number."""
    labels = np.repeat(np.arange(classes), _EACH * 10 // classes)
    split = Samples(np.zeros((len(labels), 1), np.float32), labels)
    rows = deal(Dataset(config.data.source, split, split, classes), config.data, config.run.seed).train
    owner = np.repeat(np.arange(len(rows)), rows.sizes)
    cells = np.bincount(owner * classes + labels[rows.order], minlength=len(rows) * classes)
    return cells.reshape(len(rows), classes)


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(published.read()["board"]), indent=1) + "\n", encoding="utf-8")
