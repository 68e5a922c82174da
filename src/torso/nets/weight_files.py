"""Reads weight files that other programs wrote: safetensors, and files of torch.save. Only tensors are ever read."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from torso.errors import RequestError

SAFETENSORS = ".safetensors"
PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".tar")  # suffixes of files of torch.save; read with weights_only=True
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts save the tensors
_PREFIXES = ("module.", "_orig_mod.")  # prefixes of names that DataParallel and torch.compile add
_SAVED = (b"PK", b"\x80\x02")  # first bytes of files of torch.save, new and old ones
_EXPECTED = "tensors by name: a .safetensors file, or torch.save(model.state_dict(), …)"


def read_weights(path: Path, where: str) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU. `where`: how messages name the file."""
    if not path.exists():
        raise RequestError(f"{where} does not exist. Expected: {_EXPECTED}")
    try:
        found = load_file(path) if path.suffix.lower() not in PICKLED else _unpickled(path, where)
    except (OSError, ValueError, SafetensorError) as error:
        raise RequestError(f"{where} cannot be read as weights: {_line(error)}. Expected: {_EXPECTED}") from None
    return _plain_names(_tensors(found, where))


def names_in(path: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of a safetensors file's tensors, and its metadata, without reading the tensors. Both are empty if it is
    not a safetensors file."""
    try:
        with safe_open(path, "pt") as file:
            return tuple(file.keys()), dict(file.metadata() or {})
    except (OSError, ValueError, SafetensorError):
        return (), {}


def _unpickled(path: Path, where: str) -> Any:
    """The content of a file of torch.save; refused if it holds objects other than tensors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that torch.save did not write
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:
            begins = file.read(2)
        if begins in _SAVED and "global" in str(error).lower():
            raise RequestError(
                f"{where} holds objects that are no tensors, and a pickle of objects may run any program: it is not "
                f"opened. Expected: {_EXPECTED}"
            ) from None
        raise RequestError(f"{where} is no file of weights. Expected: {_EXPECTED}") from None
    except (RuntimeError, EOFError, KeyError, AttributeError, IndexError, TypeError) as error:
        raise RequestError(f"{where} is no file of weights: {_line(error)}. Expected: {_EXPECTED}") from None


def _tensors(found: Any, where: str) -> dict[str, Tensor]:
    """The tensors by name in the content of a file, also if a training script has wrapped them in dictionaries."""
    for _ in range(2):  # at most as deep as {"model": {"state_dict": …}}
        if not isinstance(found, Mapping):
            break
        inner = next((found[key] for key in _WRAPPERS if key in found), None)
        if not isinstance(inner, Mapping):
            break
        found = inner
    if not isinstance(found, Mapping) or not found:
        what = "nothing" if isinstance(found, Mapping) else type(found).__name__
        raise RequestError(f"{where} holds {what}. Expected: {_EXPECTED}")
    strange = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if strange:
        raise RequestError(
            f"{where} holds {', '.join(strange[:5])}{' …' if len(strange) > 5 else ''}, which are no tensors. "
            f"Expected: {_EXPECTED}"
        )
    return {str(name): tensor.detach() for name, tensor in found.items()}


def _plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without the prefix that DataParallel or torch.compile has put before all names."""
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _line(error: BaseException) -> str:
    """The first line of an error, shortened; its class if it has no text."""
    return " ".join(str(error).split("\n")[0].split())[:160].rstrip(".") or type(error).__name__
