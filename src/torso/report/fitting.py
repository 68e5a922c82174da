"""A config made from a look at some data: a starting point, not a tuned one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from torso.config import Config, DataConfig
from torso.data.inputs import Pixels, Tokens
from torso.data.inventory import SurveyData
from torso.data.survey import Survey
from torso.data.texts import Texts

_SIDES = (16, 32, 64)  # candidates for data.size in pixels: larger images cost more and keep more detail
_KEEP = 96  # if all images have one size with sides up to this many pixels, they are not resized
_SECTIONS = ("csv", "text", "npz", "folder")  # sections of [data] that say how files are read


def fitting(survey_data: SurveyData, found: Survey) -> dict[str, Any]:
    """A config tree with the keys that matter for these data. It is validated, so `torso run` accepts it."""
    data = {**_data(survey_data, found), **_dealt(found)}
    tree = {
        "data": data,
        "model": {"body": _body(survey_data, found, data.get("size", 0))},
        "method": {"name": "fedbabu"},
        "train": _training(found, int(data["clients"]) or len(found.clients)),
    }
    Config(**tree)
    return tree


def as_toml(tree: dict[str, Any], path: Path) -> str:
    """The text of config.toml, with a comment that says where it comes from."""
    head = (
        f"# Made by `torso data look {path}`. Train it: torso run config.toml\n"
        "# Rounds and batch size are a starting point, not tuned. All keys: docs/reference.md\n\n"
    )
    return head + tomli_w.dumps(tree)


def _data(survey_data: SurveyData, found: Survey) -> dict[str, Any]:
    """The [data] section: which data are read, and the keys that differ from their defaults."""
    options, defaults = survey_data.options, DataConfig()
    tree: dict[str, Any] = {"source": options.source, "root": options.root}
    size = options.size or (_side(found) if survey_data.input is None else 0)
    if size:
        tree["size"] = size
    for name in _SECTIONS:
        section = getattr(options, name).model_dump(mode="json")
        default = getattr(defaults, name).model_dump(mode="json")
        if changed := {key: value for key, value in section.items() if value != default[key]}:
            tree[name] = changed
    return tree


def _side(found: Survey) -> int:
    """data.size in pixels: 0 (no resizing) if all images have one small size, else the largest candidate that at least
    half of the images reach with their shorter side."""
    height, width, _ = found.sizes[0]
    if len(found.sizes) == 1 and max(height, width) <= _KEEP:
        return 0
    shorter = np.repeat([min(h, w) for h, w, _ in found.sizes], [count for *_, count in found.sizes])
    return max([side for side in _SIDES if side <= np.median(shorter)], default=_SIDES[0])


def _dealt(found: Survey) -> dict[str, Any]:
    """The keys that deal samples to clients: the clients that the data name, else a few clients with two or more
    one-class shards each."""
    if found.clients:
        return {"partition": "by-client", "clients": 0}
    samples, classes = int(np.sum(found.train)), len(found.classes)
    if not found.parted:
        samples -= round(0.2 * samples)  # these will be the test samples
    clients = min(10, max(2, samples // 50))
    shards = max(2, -(-classes // clients))
    if clients * shards > samples:
        return {"partition": "iid", "clients": max(1, min(2, samples))}
    return {"partition": "shards", "clients": clients, "shards": shards, "balance": True}


def _body(survey_data: SurveyData, found: Survey, size: int) -> str:
    """The network for this kind of input; for images also by their size."""
    if isinstance(survey_data.input, Tokens | Texts):
        return "embedding-mean"
    if survey_data.input is not None and not isinstance(survey_data.input, Pixels):
        return "mlp"
    side = size or min(found.sizes[0][:2])
    return "conv4" if side >= 16 else "conv3" if side >= 8 else "mlp"


def _training(found: Survey, clients: int) -> dict[str, Any]:
    """The [train] section: all clients in every round if there are at most ten, about four batches in an epoch."""
    each = int(np.sum(found.train)) // max(1, clients)
    return {
        "rounds": 20,
        "fraction": 1.0 if clients <= 10 else round(max(0.1, 10 / clients), 2),
        "batch_size": int(np.clip(each // 4, 4, 50)),
    }
