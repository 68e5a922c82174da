"""`torso federation split`: writes each client of a simulation into a file, to try the same federation for real.

Shapes: N clients, C classes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torso.config import Config, DataConfig
from torso.data import DataCache, Federation, Split, build
from torso.data.inputs import Floats, Pixels, Tokens
from torso.data.naming import in_natural_order
from torso.data.wants import Wants
from torso.errors import RequestError
from torso.federation.description import CLIENT_NAME, by_class_name
from torso.runs.encoding import wanted
from torso.runs.job import prepare

CONFIG, TEST = "config.toml", "test"


def split(config: Config, out: str | Path) -> list[Path]:
    """Write `out/NAME.npz` for each client, `out/test.npz` with the whole test set, and `out/config.toml`.

    A federation of these files with this config computes the same bits as the simulation. Returns the files of the
    clients, in their order."""
    out = Path(out)
    _check_can_be_split(config)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RequestError(f"{str(out)!r} exists and is not empty. Expected: a new folder; nothing is overwritten")
    data_cache, cpu = DataCache(), torch.device("cpu")
    wants = wanted(config)
    federation = build(config.data, config.run.seed, cpu, data_cache, wants)
    plan = prepare(config.but("run.engine=flower"), federation.roster, cpu, begins=False).plan
    if any(stage.uses_meta for stage in plan):
        raise RequestError(
            f"method {config.method.name!r} has the server give samples to everybody (data.meta_per_class), and in a "
            "federation samples stay where they are. Expected: a method without them"
        )
    known = data_cache.dataset(config.data, config.run.seed, wants=wants).class_names
    common = _common(federation, _class_names(known or tuple(map(str, range(federation.classes)))))
    names = _client_names(federation.names or [""] * federation.clients)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for client, name in enumerate(names):
            parts = {"train": _part(federation.train, client), "test": _part(federation.test, client)}
            np.savez(temporary / f"{name}.npz", **_arrays(federation, parts), **common)
        whole = {TEST: (federation.test.samples, federation.test.labels)}
        np.savez(temporary / f"{TEST}.npz", **_arrays(federation, whole), **common)
        (temporary / CONFIG).write_text(_config_text(config, federation, wants), encoding="utf-8")
        temporary.replace(out)
    except OSError as error:
        raise RequestError(f"{str(out)!r} cannot be written: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [out / f"{name}.npz" for name in names]


def _check_can_be_split(config: Config) -> None:
    """Raise RequestError for keys that a real federation cannot have.

    Keys that distribute samples (data.partition, data.validation, …) are fine: their effect is in the files."""
    data, attack = config.data, config.attack.kind
    named = attack["name"] if isinstance(attack, dict) else attack
    reasons = {
        "data.server_fraction": (data.server_fraction, "the server of a federation has no training samples", 0),
        "data.new_clients": (data.new_clients, "newcomers of a federation are those that join later", 0),
        "attack.kind": ("" if named == "none" else named, "attacks are simulated only", "none"),
    }
    for key, (found, reason, accepted) in reasons.items():
        if found:
            raise RequestError(f"{key} = {found}: {reason}. Accepted: {accepted}")


def _part(part: Split, client: int) -> tuple[Tensor, Tensor]:
    rows = part.rows(client)
    return part.samples[rows], part.labels[rows]


def _arrays(federation: Federation, parts: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Samples and labels of some splits, under the names that the npz source expects."""
    what = "images" if isinstance(federation.input, Pixels) else "samples"
    arrays = {f"{name}_{what}": samples.numpy() for name, (samples, _) in parts.items()}
    return arrays | {f"{name}_labels": labels.numpy() for name, (_, labels) in parts.items()}


def _common(federation: Federation, classes: Sequence[str]) -> dict[str, Any]:
    """The entries that all files have in common: names, and the kind of input with the simulation's mean and std."""
    kind = federation.input
    entries: dict[str, Any] = {"name": np.array(federation.name), "class_names": np.array(classes)}
    if isinstance(kind, Pixels | Floats):
        entries |= {"mean": np.array(kind.mean), "std": np.array(kind.std)}
    if isinstance(kind, Floats) and kind.names:
        entries["feature_names"] = np.array(kind.names)
    if isinstance(kind, Tokens):
        entries |= {"vocabulary": np.array(kind.vocabulary), "pad": np.array(kind.pad)}
        if kind.tokenizer:
            entries["tokenizer"] = np.array(kind.tokenizer)
    return entries


def _class_names(names: Sequence[str]) -> list[str]:
    """The class names, if a federation numbers them in the same order; otherwise with their number in front."""
    if by_class_name(names) == list(names):
        return list(names)
    width = len(str(len(names) - 1))
    return [f"{number:0{width}} {name}" for number, name in enumerate(names)]


def _client_names(names: Sequence[str]) -> list[str]:
    """The clients' names, if they can be names of files and a federation numbers them in the same order.

    Otherwise they get their number in front."""
    valid = all(re.fullmatch(CLIENT_NAME, name) for name in names)
    unique = len({name.lower() for name in (*names, TEST)}) == len(names) + 1
    if valid and unique and in_natural_order(names) == list(names):
        return list(names)
    width = max(3, len(str(len(names) - 1)))
    words = [re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40] for name in names]
    return [f"{number:0{width}}-{word}" if word else f"client-{number:0{width}}" for number, word in enumerate(words)]


def _config_text(config: Config, federation: Federation, wants: Wants) -> str:
    """The config of the federation: without the keys that distribute samples, which are in the files now."""
    simulated = config.data
    data = DataConfig(source="npz", clients=federation.clients, augment=federation.augment)
    if wants.encoding is None and (
        wants.mean or wants.size
    ):  # these keys override the body's; the files do not show it
        data = data.model_copy(update={"size": simulated.size, "normalize": simulated.normalize})
    head = (
        f"# A federation of the {federation.clients} clients that were simulated with data.source = "
        f"{simulated.source!r}, data.partition = {simulated.partition!r}, run.seed = {config.run.seed}.\n"
    )
    flower = config.run.flower.model_copy(update={"clients": federation.clients})  # the run waits for all of them
    run = config.run.model_copy(update={"flower": flower})
    model = config.model.model_copy(update={"encoder": "", "encoder_weights": "auto"})
    if wants.encoding is not None:
        head += f"# Its samples are features, made by model.encoder = {config.model.encoder!r}.\n"
    return head + config.model_copy(update={"data": data, "model": model, "run": run}).as_toml()
