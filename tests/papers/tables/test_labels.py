"""Every label of the published tables is a method that can be run by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torso import Config
from torso.errors import RequestError
from torso.methods import methods
from torso.papers.tables.labels import LABELS, preset_of, settings_of

TABLES = Path(__file__).parents[4] / "shared" / "spec" / "tables.jsonl"


def test_every_label_names_a_preset() -> None:
    for paper, labels in LABELS.items():
        for label, preset in labels.items():
            assert preset in methods, f"{paper}: {label} → {preset}"


@pytest.mark.skipif(not TABLES.is_file(), reason=f"the published tables are not beside this checkout: {TABLES}")
def test_every_record_of_the_published_tables_resolves_to_a_method() -> None:
    records: list[dict[str, Any]] = [json.loads(line) for line in TABLES.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 3282
    met: set[tuple[str, str]] = set()
    for record in records:
        paper, label = record["paper"], record["algorithm"]
        met.add((paper, label))
        config = Config.load(sets=settings_of(paper, label, record["setting"]))
        assert config.method.name.startswith(preset_of(paper, label))
    assert met == {(paper, label) for paper, labels in LABELS.items() for label in labels}  # and no label too many


def test_a_record_says_which_variant() -> None:
    assert settings_of("FedBABU", "partial-update", {"local_update_part": "conv123"})[1] == "method.train=blocks:3"
    assert settings_of("FedBABU", "partial-update", {"local_update_part": "conv1234+linear"})[1] == "method.train=all"
    body = settings_of("FedBABU", "FedAvg+server_data_sharing", {"server_update_part": "body"})
    assert Config.load(sets=body).method.server_data == "body"
    assert settings_of("Fed-RoD", "FedAvg") == ("method.name=fedavg", "method.personal=kept")
    assert settings_of("FedBABU", "FedAvg") == ("method.name=fedavg",)
    tau = Config.load(sets=settings_of("FedFN", "SphereFed (CE)", {"temperature_tau": 15}))
    assert tau.method.head.tau == 15
    half = Config.load(sets=settings_of("FedFN", "FedFN-FT", {"finetune_lr": "0.01*lr"}))
    assert half.method.personal.factor == 0.01
    adam = Config.load(sets=settings_of("FedNCM", "FedNCM+FT", {"fl_optimizer": "FedAdam"}))
    assert type(adam.method.server).__name__ == "TorchAdam"
    ldam = settings_of("Fed-RoD", "Fed-RoD (hyper)", {"balanced_loss": "LDAM"})
    assert "method.objective=ldam" in ldam


def test_unknown_labels_are_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="FedBABU"):
        preset_of("FedBABU", "FedBABBU")
    with pytest.raises(RequestError, match="Accepted: FedBABU, Fed-RoD, FedNCM, FedFN"):
        preset_of("FedProto", "FedAvg")
