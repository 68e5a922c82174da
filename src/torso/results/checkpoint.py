"""Checkpoints: safetensors for tensors, JSON for the rest, each whole or absent.

`round-R.json` names its files with their checksums: `round-R.safetensors`, what the server holds, and one or several
`clients-R.safetensors`, what clients hold. A client's state is written when it has changed since the last checkpoint,
so one costs what a round has changed, not what all clients have. A file is written under a temporary name and
renamed; the JSON file comes last and holds a checksum of itself. The last two checkpoints are kept, with their files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from torso.errors import RequestError
from torso.nets import Tensors
from torso.personal.state import State
from torso.reading import parse_json
from torso.results.files import replace_file, sha256_of, writing
from torso.results.pending import numbers_of
from torso.results.state_tensors import as_named_now, client_tensors, server_tensors, state_of
from torso.server.state import ServerState, bytes_of

KEPT = 2
_FORMAT = 2
_OLDER = 1  # all tensors in one file, those of clients too
_WASTE = 2.0  # times what clients hold now: once their files take more, all states are written anew
_ERRORS = (OSError, ValueError, KeyError, TypeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, and what was passed over on the way to it."""

    path: Path
    state: State
    skipped: tuple[str, ...] = ()

    @property
    def server(self) -> ServerState:
        return self.state.server


@dataclass
class _File:
    """A file of clients' states: which of them it holds, and how long and what it is."""

    clients: list[int]
    size: int
    sha256: str


@dataclass
class Checkpoints:
    """The checkpoints of one run, in a folder. It remembers which client's state lies in which file."""

    folder: Path
    fingerprint: str
    written: int = 0  # bytes of tensors so far, for those who measure it
    _files: dict[str, _File] = field(default_factory=dict)
    _lies: dict[int, tuple[str, weakref.ref[Any]]] = field(default_factory=dict)  # where, and what was written

    def save(self, state: State) -> Path:
        """Write the state of a finished round, then tidy up."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        path = self.folder / f"round-{state.round:06d}.json"
        server = path.with_suffix(".safetensors")
        flat = server_tensors(state)
        replace_file(server, lambda temporary: save_file(flat, temporary))
        self.written += bytes_of(flat)
        self._save_clients(state)
        note = {
            "format": _FORMAT,
            "round": state.round,
            "config": self.fingerprint,
            "tensors_sha256": sha256_of(server),
            "clients": {name: {"sha256": file.sha256, "of": self._live(name)} for name, file in self._files.items()},
            "met": sorted(state.server.met),
            "cost": state.cost.as_json(),
        }
        if state.pending:
            note["pending"] = numbers_of(state.pending)
        _write_note(path, note)
        tidy(self.folder)
        return path

    def resumed(self, found: Checkpoint) -> None:
        """Go on from a checkpoint: what it holds need not be written again."""
        note = parse_json(found.path.read_text(encoding="utf-8"))
        self._files, self._lies = {}, {}
        for name, entry in note.get("clients", {}).items():
            size = (self.folder / name).stat().st_size
            self._files[name] = _File(list(entry["of"]), size, entry["sha256"])
            for client in entry["of"]:
                self._lies[client] = name, weakref.ref(found.state.clients.entries[client])

    def _save_clients(self, state: State) -> None:
        """Write the clients that have changed into a file; all of them where the files have become wasteful."""
        entries = state.clients.entries
        self._lies = {k: lies for k, lies in self._lies.items() if k in entries}
        changed = [k for k, entry in sorted(entries.items()) if k not in self._lies or self._lies[k][1]() is not entry]
        self._forget()
        if changed:
            self._write(state, changed)
        live = sum(self._bytes_of(name) for name in self._files)
        if sum(file.size for file in self._files.values()) > _WASTE * live + (1 << 20):
            self._write(state, sorted(entries))

    def _write(self, state: State, clients: list[int]) -> None:
        number = sum(name.startswith(f"clients-{state.round:06d}") for name in self._files)
        name = f"clients-{state.round:06d}{f'-{number}' if number else ''}.safetensors"
        held = {k: state.clients[k] for k in clients}
        flat = client_tensors(held)
        replace_file(self.folder / name, lambda temporary: save_file(flat, temporary))
        size = bytes_of(flat)
        self.written += size
        self._files[name] = _File(clients, size, sha256_of(self.folder / name))
        self._lies |= {k: (name, weakref.ref(state.clients.entries[k])) for k in clients}
        self._forget()

    def _live(self, name: str) -> list[int]:
        return [k for k in self._files[name].clients if self._lies.get(k, ("",))[0] == name]

    def _bytes_of(self, name: str) -> float:
        """Of what a file holds that is not out of date; all clients of a file are taken to hold as much."""
        file = self._files[name]
        return file.size * len(self._live(name)) / max(len(file.clients), 1)

    def _forget(self) -> None:
        self._files = {name: file for name, file in self._files.items() if self._live(name)}


def save(folder: Path, state: State, fingerprint: str) -> Path:
    """One checkpoint by itself: everything is written."""
    return Checkpoints(folder, fingerprint).save(state)


def tidy(folder: Path) -> None:
    """Keep the newest checkpoints with their files; drop older ones and what a killed run left half-written."""
    newest = _newest_first(folder)[:KEPT]
    kept = {whole.stem for whole in newest} | {Path(name).stem for whole in newest for name in _client_files(whole)}
    for pattern in (".*", "round-*.json", "round-*.safetensors", "clients-*.safetensors"):
        for path in folder.glob(pattern):
            if path.stem not in kept:
                path.unlink()


def _client_files(path: Path) -> list[str]:
    try:
        return list(parse_json(path.read_text(encoding="utf-8")).get("clients", {}))
    except (OSError, ValueError, AttributeError):
        return []


def load_newest(
    folder: Path, model: Tensors, fingerprint: str | Collection[str] | None, *, uploads: bool = False
) -> Checkpoint | None:
    """The newest whole checkpoint of this config (None: of any), or None where there is none at all.

    `model` says which tensors there must be, with their shapes; `uploads`: whether the server keeps what clients
    upload, which older checkpoints do not tell apart from what clients keep."""
    skipped: list[str] = []
    accepted = {fingerprint} if isinstance(fingerprint, str) else fingerprint
    for path in _newest_first(folder):
        try:
            return Checkpoint(path, _read(path, model, accepted, uploads), tuple(skipped))
        except _ERRORS as error:
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
        except _ERRORS:
            continue
        target.mkdir(parents=True, exist_ok=True)
        for name in (path.with_suffix(".safetensors").name, *note.get("clients", {})):
            copied = source / name
            replace_file(target / name, lambda temporary: shutil.copyfile(copied, temporary))  # noqa: B023
        _write_note(target / path.name, {**note, "config": fingerprint})
        return True
    return False


def _write_note(path: Path, note: dict[str, Any]) -> None:
    text = json.dumps({**note, "sha256": _seal(note)})
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _read(path: Path, model: Tensors, accepted: Collection[str] | None, uploads: bool) -> State:
    note, tensors = _verified(path)
    if accepted is not None and note["config"] not in accepted:
        raise RequestError(
            f"checkpoint {str(path)!r} comes from another config. "
            "Resume with the config.toml of its run, or choose another --out."
        )
    if note["format"] == _OLDER:
        tensors = dict(as_named_now(tensors, uploads))
    return state_of(tensors, note, model, repr(str(path)))


def _verified(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The note and the tensors of a checkpoint, after their checksums; of clients, those that it stands for."""
    note = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(note, dict) or note.pop("sha256", None) != _seal(note):
        raise ValueError("its checksum does not match")
    if note["format"] not in (_FORMAT, _OLDER):
        raise ValueError(f"format {note['format']}, this version reads {_OLDER} and {_FORMAT}")
    server = path.with_suffix(".safetensors")
    tensors = _checked(server, note["tensors_sha256"])
    for name, entry in note.get("clients", {}).items():
        of = {f"client {client}" for client in entry["of"]}
        held = _checked(path.with_name(Path(name).name), entry["sha256"])
        tensors |= {n: tensor for n, tensor in held.items() if n.partition("/")[0] in of}
    return note, tensors


def _checked(path: Path, sha256: str) -> Tensors:
    if sha256_of(path) != sha256:
        raise ValueError(f"the checksum of {path.name} does not match")
    return load_file(path)


def newest_model(folder: Path) -> Tensors | None:
    """The model of the newest checkpoint as its file has it, whatever the network; None where there is none.

    Raises what reading a damaged file raises: OSError, ValueError, KeyError, SafetensorError."""
    newest = _newest_first(folder)
    if not newest:
        return None
    return {n.removeprefix("model/"): t for n, t in _verified(newest[0])[1].items() if n.startswith("model/")}


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"), reverse=True) if folder.is_dir() else []


def rounds_of(folder: Path) -> list[int]:
    """The rounds of which a folder has a note (`round-R.json`), ascending."""
    return sorted(int(path.stem.removeprefix("round-")) for path in _newest_first(folder))


def _seal(note: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()
