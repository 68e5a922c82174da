"""The folder of a model that others have trained: on this disk, in an installed package, or of the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from torso.errors import RequestError
from torso.nets.weight_files import read_weights
from torso.reading import parse_json

CONFIG = "config.json"
_FILES = ["*.json", "*.safetensors", "pytorch_model.bin"]  # of a model in the hub: nothing that is code
_SHARDS = "model.safetensors.index.json"


def found_folder(name: str, key: str, marker: str, packages: bool = False) -> Path:
    """The folder that a name stands for; `marker` is the file that such a folder has. `packages`: whether the name may
    be that of an installed package which ships one."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / marker).is_file():
            raise RequestError(f"{key}: {path} has no {marker}. Expected: the folder of a saved model")
        return path.resolve()
    if packages and (inside := _in_package(name, marker)) is not None:
        return inside
    return _of_hub(name, key, packages)


def _in_package(name: str, marker: str) -> Path | None:
    """The folder with the marker in an installed package, which is not imported for this."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    for place in spec.submodule_search_locations or () if spec is not None else ():
        found = sorted(Path(place).rglob(marker), key=lambda file: len(file.parts))
        if found:
            return found[0].parent
    return None


@cache
def _of_hub(name: str, key: str, packages: bool) -> Path:
    """From the hub's own cache, or downloaded into it."""
    instead = f"a folder,{' an installed package,' if packages else ''} or the name of a model of huggingface.co"
    try:
        import huggingface_hub
    except ImportError:
        raise RequestError(
            f"{key}: there is no folder {name!r}, and a model of huggingface.co needs huggingface_hub. Install it: "
            f"pip install 'torso[text]'. Expected: {instead}"
        ) from None
    try:
        with _silent("huggingface_hub"):  # of its retries
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # a bad name, no network, no such model: each is another exception
        raise RequestError(
            f"{key}: there is no folder {name!r}, and it cannot be had from huggingface.co ({_reason(error)}). "
            f"Expected: {instead}"
        ) from None


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Inside, a library logs errors alone."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _reason(error: BaseException) -> str:
    """In a few words: the library wraps what has happened into a page of advice."""
    while (inner := error.__cause__) is not None:
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_json(folder: Path, name: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    """A file of the folder as an object; empty where it may be absent."""
    found = read_any_json(folder, name, key, optional=optional)
    if not isinstance(found, dict):
        raise RequestError(f"{key}: {folder / name} holds {type(found).__name__}. Expected: an object")
    return found


def read_any_json(folder: Path, name: str, key: str, *, optional: bool = False) -> Any:
    path = folder / name
    if optional and not path.is_file():
        return {}
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RequestError(f"{key}: {path} cannot be read: {error}") from None


def read_tensors(folder: Path, key: str) -> dict[str, Tensor]:
    """The weights of a folder: safetensors, also in several files, or a .bin file of tensors alone."""
    if (folder / _SHARDS).is_file() and not (folder / "model.safetensors").is_file():
        shards = sorted(set(map(str, read_json(folder, _SHARDS, key).get("weight_map", {}).values())))
        parts = [read_weights(folder / Path(shard).name, f"{key}: {shard}") for shard in shards]
        return {name: tensor for part in parts for name, tensor in part.items()}
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return read_weights(folder / name, f"{key}: {folder / name}")
    raise RequestError(f"{key}: {folder} has no weights. Expected: model.safetensors")
