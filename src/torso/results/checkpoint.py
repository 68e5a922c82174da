"""Checkpoints: safetensors for tensors, JSON for the rest, each whole or absent.

A file is written under a temporary name and renamed. The JSON file comes last and holds the checksum of the tensors and
of itself, so a checkpoint counts only when both are whole. The last two are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from torso.errors import RequestError
from torso.nets import Tensors
from torso.server.state import Cost, State

KEPT = 2
_FORMAT = 1
_SERVER = ("model", "shown", "rule", "drift", "origin")  # the fields of State that are tensors by name …
_CLIENTS = ("private", "memory", "own", "notes")  # … and those by client and name
_FREE = ("rule", "notes")  # those whose tensors are named and shaped as a strategy likes


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, and what was passed over on the way to it."""

    path: Path
    state: State
    skipped: tuple[str, ...] = ()


def save(folder: Path, state: State, fingerprint: str) -> Path:
    """Write the state of a finished round, then tidy up."""
    folder.mkdir(exist_ok=True)
    path = folder / f"round-{state.round:06d}.json"
    tensors = path.with_suffix(".safetensors")
    replace_file(tensors, lambda temporary: save_file(_flatten(state), temporary))
    note = {
        "format": _FORMAT,
        "round": state.round,
        "config": fingerprint,
        "tensors_sha256": _sha256(tensors),
        "met": sorted(state.met),
        "cost": asdict(state.cost),
    }
    text = json.dumps({**note, "sha256": _seal(note)})
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    tidy(folder)
    return path


def tidy(folder: Path) -> None:
    """Keep the newest checkpoints; drop older ones and what a killed run left half-written."""
    kept = {whole.stem for whole in _newest_first(folder)[:KEPT]}
    for old in (*folder.glob(".*"), *folder.glob("round-*.json"), *folder.glob("round-*.safetensors")):
        if old.stem not in kept:
            old.unlink()


def load_newest(folder: Path, model: Tensors, fingerprint: str | None) -> Checkpoint | None:
    """The newest whole checkpoint of this config (None: of any), or None where there is none at all.

    `model` says which tensors there must be, with their shapes."""
    skipped: list[str] = []
    for path in _newest_first(folder):
        try:
            return Checkpoint(path, _read(path, model, fingerprint), tuple(skipped))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            skipped.append(f"{path.name} is damaged ({error})")
    if skipped:
        raise RequestError(
            f"no whole checkpoint in {str(folder)!r}: {'; '.join(skipped)}. Start again in another folder."
        )
    return None


def adopt(source: Path, target: Path, fingerprint: str) -> bool:
    """Make the newest checkpoint of one folder the first of another, for a run whose rounds so far are the same.

    Returns whether there was one; a damaged one is not handed on."""
    for path in _newest_first(source):
        try:
            note, _ = _verified(path)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            continue
        target.mkdir(parents=True, exist_ok=True)
        tensors, place = path.with_suffix(".safetensors"), target / path.name
        replace_file(place.with_suffix(".safetensors"), lambda temporary: shutil.copyfile(tensors, temporary))  # noqa: B023
        note["config"] = fingerprint
        text = json.dumps({**note, "sha256": _seal(note)})
        replace_file(place, lambda temporary: temporary.write_text(text, encoding="utf-8"))  # noqa: B023
        return True
    return False


def _read(path: Path, model: Tensors, fingerprint: str | None) -> State:
    note, tensors = _verified(path)
    if fingerprint is not None and note["config"] != fingerprint:
        raise RequestError(
            f"checkpoint {str(path)!r} comes from another config. "
            "Resume with the config.toml of its run, or choose another --out."
        )
    return _unflatten(tensors, model, note, path)


def _verified(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The note and the tensors of a checkpoint, after their checksums."""
    note = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(note, dict) or note.pop("sha256", None) != _seal(note):
        raise ValueError("its checksum does not match")
    if note["format"] != _FORMAT:
        raise ValueError(f"format {note['format']}, this version reads {_FORMAT}")
    tensors = path.with_suffix(".safetensors")
    if _sha256(tensors) != note["tensors_sha256"]:
        raise ValueError(f"the checksum of {tensors.name} does not match")
    return note, load_file(tensors)


def load_body(path: Path, model: Tensors, body: str) -> Tensors:
    """The tensors of a body trained elsewhere, from a run folder or a safetensors file; every one must fit `body`."""
    where, instead = f"model.weights = {str(path)!r}", f"Give weights of model.body = {body!r}, or change model.body."
    try:
        if path.is_dir():
            newest = _newest_first(path / "checkpoints")
            if not newest:
                raise RequestError(f"{where} holds no checkpoint. Give the folder of a finished run.")
            held = {n.removeprefix("model/"): t for n, t in _verified(newest[0])[1].items() if n.startswith("model/")}
        else:
            held = load_file(path)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RequestError(f"{where} cannot be read: {error}") from None
    found = {name: tensor for name, tensor in held.items() if name.startswith("body.")}
    for name, tensor in found.items():
        check_fits(name, tensor, model, where, instead)
        if not tensor.isfinite().all():
            raise RequestError(
                f"{where}: {name} holds NaN or infinite values. Give a body whose training did not diverge."
            )
    missing = [name for name in model if name.startswith("body.") and name not in found]
    if missing:
        raise RequestError(f"{where} lacks {', '.join(missing[:5])}, which this network's body has. {instead}")
    return {name: tensor.to(model[name].device, copy=True) for name, tensor in found.items()}


def _flatten(state: State) -> Tensors:
    named = {f"{kind}/{n}": t for kind in _SERVER for n, t in getattr(state, kind).items()}
    for kind in _CLIENTS:
        held: Mapping[int, Tensors] = getattr(state, kind)
        named |= {f"{kind}/{client}/{n}": t for client, own in held.items() for n, t in own.items()}
    return _each_its_own({name: tensor.detach().cpu().contiguous() for name, tensor in named.items()})


def _each_its_own(tensors: Tensors) -> Tensors:
    """safetensors refuses two names for one piece of memory (a model that has not moved from where it began)."""
    met: set[int] = set()
    alone: Tensors = {}
    for name, tensor in tensors.items():
        alone[name] = tensor.clone() if tensor.data_ptr() in met else tensor
        met.add(tensor.data_ptr())
    return alone


def _unflatten(tensors: Tensors, model: Tensors, note: dict[str, Any], path: Path) -> State:
    found: dict[str, Tensors] = {kind: {} for kind in _SERVER}
    held: dict[str, dict[int, Tensors]] = {kind: {} for kind in _CLIENTS}
    device = next(iter(model.values())).device
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        client, _, rest = rest.partition("/") if kind in _CLIENTS else ("", "", rest)
        if kind not in _FREE:
            check_fits(rest, tensor, model, repr(str(path)))
        place = held[kind].setdefault(int(client), {}) if kind in _CLIENTS else found[kind]
        place[rest] = tensor.to(device, copy=True)  # aligned memory: sums over a file's depend on where a tensor lies
    missing = model.keys() - found["model"].keys()
    if missing:
        raise RequestError(f"{str(path)!r} lacks {', '.join(sorted(missing))}, which this network has.")
    found["model"] = {name: found["model"][name] for name in model}
    return State(
        **found,  # type: ignore[arg-type]
        **held,  # type: ignore[arg-type]
        round=note["round"],
        met=frozenset(note["met"]),
        cost=Cost(**note["cost"]),
    )


def check_fits(name: str, tensor: torch.Tensor, model: Tensors, where: str, instead: str = "") -> None:
    """Refuse a tensor that the network has no place for; `instead` says what would do."""
    if name not in model:
        raise RequestError(f"{where} holds {name}, which this network does not have. {instead}".rstrip())
    if tensor.shape != model[name].shape or tensor.dtype != model[name].dtype:
        raise RequestError(
            f"{where}: {name} is {tensor.dtype} {list(tensor.shape)}, "
            f"this network's is {model[name].dtype} {list(model[name].shape)}. {instead}".rstrip()
        )


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"), reverse=True) if folder.is_dir() else []


def replace_file(path: Path, write: Any) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    write(temporary)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def write_text(path: Path, text: str) -> None:
    """A whole text file or the old one, never half of it."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def _seal(note: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()
