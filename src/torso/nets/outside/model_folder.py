"""Finds and reads the folder of a pre-trained model: on the disk, in an installed package, or from the Hugging Face
hub."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from torso.errors import RequestError
from torso.logs import silent
from torso.nets.weight_files import read_weights
from torso.reading import parse_json

CONFIG = "config.json"
_FILES = ["*.json", "*.safetensors", "pytorch_model.bin"]  # files to download from the hub: none of them is code
_SHARDS = "model.safetensors.index.json"


def found_folder(name: str, key: str, marker: str, packages: bool = False) -> Path:
    """The folder of a model: the name is that of a folder, of an installed package, or of a model in the hub.

    `key`: the setting that messages name. `marker`: a file that the folder must have. `packages`: whether the name may
    be that of an installed package with a model folder."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / marker).is_file():
            raise RequestError(f"{key}: {path} has no {marker}. Expected: the folder of a saved model")
        return path.resolve()
    if packages and (inside := _in_package(name, marker)) is not None:
        return inside
    return _of_hub(name, key, packages)


def _in_package(name: str, marker: str) -> Path | None:
    """The folder with the marker in an installed package, which is not imported; None if there is none."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        found = sorted(Path(location).rglob(marker), key=lambda file: len(file.parts))
        if found:
            return found[0].parent
    return None


@cache
def _of_hub(name: str, key: str, packages: bool) -> Path:
    """The folder of a model in the hub's cache, after a download if it is not there."""
    instead = f"a folder,{' an installed package,' if packages else ''} or the name of a model of huggingface.co"
    try:
        import huggingface_hub
    except ImportError:
        raise RequestError(
            f"{key}: there is no folder {name!r}, and a model of huggingface.co needs huggingface_hub. Install it: "
            f"pip install 'torso[text]'. Expected: {instead}"
        ) from None
    try:
        with silent("huggingface_hub"):  # it warns at every retry
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # a bad name, no network and no such model raise different exceptions
        raise RequestError(
            f"{key}: there is no folder {name!r}, and it cannot be downloaded from huggingface.co ({_reason(error)}). "
            f"Expected: {instead}"
        ) from None


def _reason(error: BaseException) -> str:
    """The first cause of an error in a few words: the library wraps it into a page of advice."""
    while (inner := error.__cause__) is not None:
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_json(folder: Path, name: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    """A JSON file of the folder that holds an object; empty if the file is `optional` and absent."""
    found = read_any_json(folder, name, key, optional=optional)
    if not isinstance(found, dict):
        raise RequestError(f"{key}: {folder / name} holds {type(found).__name__}. Expected: an object")
    return found


def read_any_json(folder: Path, name: str, key: str, *, optional: bool = False) -> Any:
    """The content of a JSON file of the folder; an empty object if the file is `optional` and absent."""
    path = folder / name
    if optional and not path.is_file():
        return {}
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RequestError(f"{key}: {path} cannot be read: {error}") from None


def read_tensors(folder: Path, key: str) -> dict[str, Tensor]:
    """The weights in a folder: in one or several safetensors files, or in a .bin file with nothing but tensors."""
    if (folder / _SHARDS).is_file() and not (folder / "model.safetensors").is_file():
        file_of = read_json(folder, _SHARDS, key).get("weight_map", {})
        tensors: dict[str, Tensor] = {}
        for shard in sorted(set(map(str, file_of.values()))):
            tensors |= read_weights(folder / Path(shard).name, f"{key}: {shard}")
        return tensors
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return read_weights(folder / name, f"{key}: {folder / name}")
    raise RequestError(f"{key}: {folder} has no weights. Expected: model.safetensors")
