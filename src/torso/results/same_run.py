"""Decides whether two configs describe the same run, so that one can continue from the other's checkpoint."""

from __future__ import annotations

import hashlib
import json
from functools import reduce
from typing import Any

from torso.config import (
    Config,
    CsvConfig,
    FaultsConfig,
    FolderConfig,
    LoraConfig,
    MeasureConfig,
    NpzConfig,
    PrivacyConfig,
    SpeedsConfig,
    TextConfig,
)

_FREE = {
    "run.workers",
    "run.checkpoint_every",
    "run.engine",
    "run.device",
    "run.clients_at_once",
    "run.features",
    "run.compile",
    "run.ray",
    "run.flower",
}
"""Keys that may change between a run and its continuation: they change how it is computed, not what."""

_NEW_MEASURE_KEYS = {"bins", "shift", "corruptions", "severities", "among"}
_NEWER_KEYS = {
    "personalize.batch_size": 0,
    "data.size": 0,
    "train.min_clients": 1,
    "method.server.clip": 0.0,
    "data.per_class": 0,
    "data.text": TextConfig().model_dump(mode="json"),
    "data.csv.text": [],
    "data.csv.names": [],
    "data.csv": CsvConfig().model_dump(mode="json", exclude={"text", "names"}),  # must come after its own newer keys
    "data.npz.test_share": NpzConfig().test_share,
    "data.npz": NpzConfig().model_dump(mode="json", exclude={"test_share"}),  # must come after its own newer key
    "data.folder": FolderConfig().model_dump(mode="json"),
    "model.encoder": "",
    "model.encoder_weights": "auto",
    "model.lora": LoraConfig().model_dump(mode="json"),
    "run.faults": FaultsConfig().model_dump(mode="json"),
    "run.speeds": SpeedsConfig().model_dump(mode="json"),
    "privacy": PrivacyConfig().model_dump(mode="json"),
    "method.statistics": {"name": "none"},
    "method.head.adds": True,
    "method.head.through": False,
    "method.head.prior": False,
    "data.floor": 2,
    "data.seed": -1,
    "data.test_order": "mixed",
    **{
        f"measure.{key}": default
        for key, default in MeasureConfig().model_dump(mode="json", include=_NEW_MEASURE_KEYS).items()
    },
}
"""Keys that were added later, with their defaults. At its default a key is left out of the fingerprint, so that
checkpoints from before the key existed stay valid."""


def fingerprint(config: Config) -> str:
    """A hash of the config that is equal for configs that describe the same run."""
    tree = config.as_tree()
    for key in _FREE:
        section, _, name = key.partition(".")
        tree[section].pop(name)
    for key, default in _NEWER_KEYS.items():
        *sections, name = key.split(".")
        table: dict[str, Any] = reduce(dict.__getitem__, sections, tree)
        if table.get(name) == default:
            table.pop(name)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def differences(before: Config, now: Config) -> str:
    """The first three keys that make two configs different runs, with both values, in words."""
    old, new = _flat(before.as_tree()), _flat(now.as_tree())
    keys = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k) and not is_free(k)]
    listed = ", ".join(f"{key} was {old.get(key)!r}, now {new.get(key)!r}" for key in keys[:3])
    return f"{listed} …" if len(keys) > 3 else listed


def only_longer(before: Config, now: Config) -> bool:
    """Whether the only difference is a larger train.rounds."""
    with_old_rounds = now.but(f"train.rounds={before.train.rounds}")
    return now.train.rounds > before.train.rounds and fingerprint(with_old_rounds) == fingerprint(before)


def is_free(key: str) -> bool:
    """Whether a key may change when a run is continued (`_FREE`)."""
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
