"""The config that fits some data: a place to begin, not a tuned one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from torso.config import Config, DataConfig
from torso.data.inputs import Pixels, Tokens
from torso.data.inventory import Stock
from torso.data.survey import Survey
from torso.data.texts import Texts

_SIDES = (16, 32, 64)  # data.size: larger images cost more, and keep more detail
_KEEP = 96  # images of one size are taken as they are up to this side
_SECTIONS = ("csv", "text", "npz", "folder")


def fitting(stock: Stock, found: Survey) -> dict[str, Any]:
    """The tree of a config.toml, with the keys that matter; checked, so that `torso run` takes it."""
    data = {**_data(stock, found), **_dealt(found)}
    tree = {
        "data": data,
        "model": {"body": _body(stock, found, data.get("size", 0))},
        "method": {"name": "fedbabu"},
        "train": _training(found, int(data["clients"]) or len(found.clients)),
    }
    Config(**tree)
    return tree


def as_toml(tree: dict[str, Any], path: Path) -> str:
    head = (
        f"# Made by `torso data look {path}`. Train it: torso run config.toml\n"
        "# Rounds and batch size are a place to begin. Every key: docs/reference.md\n\n"
    )
    return head + tomli_w.dumps(tree)


def _data(stock: Stock, found: Survey) -> dict[str, Any]:
    """What is read, and the keys of it that are not as usual."""
    options, usual = stock.options, DataConfig()
    tree: dict[str, Any] = {"source": options.source, "root": options.root}
    size = options.size or (_side(found) if stock.input is None else 0)
    if size:
        tree["size"] = size
    for name in _SECTIONS:
        section, plain = getattr(options, name).model_dump(mode="json"), getattr(usual, name).model_dump(mode="json")
        if changed := {key: value for key, value in section.items() if value != plain[key]}:
            tree[name] = changed
    return tree


def _side(found: Survey) -> int:
    """0: as they are, where all images have one small size; else a side that most of them are not smaller than."""
    height, width, _ = found.sizes[0]
    if len(found.sizes) == 1 and max(height, width) <= _KEEP:
        return 0
    shorter = np.repeat([min(h, w) for h, w, _ in found.sizes], [count for *_, count in found.sizes])
    return max([side for side in _SIDES if side <= np.median(shorter)], default=_SIDES[0])


def _dealt(found: Survey) -> dict[str, Any]:
    """The clients that the data name; else two shards of one class for each of a few clients."""
    if found.clients:
        return {"partition": "by-client", "clients": 0}
    samples, classes = int(np.sum(found.train)), len(found.classes)
    samples -= 0 if found.parted else round(0.2 * samples)
    clients = min(10, max(2, samples // 50))
    shards = max(2, -(-classes // clients))
    if clients * shards > samples:
        return {"partition": "iid", "clients": max(1, min(2, samples))}
    return {"partition": "shards", "clients": clients, "shards": shards, "balance": True}


def _body(stock: Stock, found: Survey, size: int) -> str:
    if isinstance(stock.input, Tokens | Texts):
        return "embedding-mean"
    if stock.input is not None and not isinstance(stock.input, Pixels):
        return "mlp"
    side = size or min(found.sizes[0][:2])
    return "conv4" if side >= 16 else "conv3" if side >= 8 else "mlp"


def _training(found: Survey, clients: int) -> dict[str, Any]:
    """All clients in every round where there are few; about four batches of a client in an epoch."""
    each = int(np.sum(found.train)) // max(1, clients)
    return {
        "rounds": 20,
        "fraction": 1.0 if clients <= 10 else round(max(0.1, 10 / clients), 2),
        "batch_size": int(np.clip(each // 4, 4, 50)),
    }
