"""Writes and reads checkpoints: safetensors files for tensors, a JSON file for the rest.

`round-R.json` lists its files with their checksums: `round-R.safetensors` has the state of the server, and one or
several `clients-R.safetensors` have the states of clients. The state of a client is written only if it has changed
since the last checkpoint, so the cost of a checkpoint depends on what a round has changed, not on how many clients
there are.

Every file is written under a temporary name and then renamed. The JSON file is written last and has a checksum of
itself, so a checkpoint is either complete or ignored. The last two checkpoints are kept, with their files.
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
from torso.results.state_tensors import client_tensors, renamed_tensors, server_tensors, state_of
from torso.server.state import ServerState, bytes_of

KEPT = 2
_FORMAT = 2
_OLDER = 1  # the first format: all tensors in one file, those of clients too
_WASTE = 2.0  # if the clients' files take more than this many times the current states, all states are written again
_ERRORS = (OSError, ValueError, KeyError, TypeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read."""

    path: Path  # of its JSON file
    state: State
    skipped: tuple[str, ...] = ()  # newer checkpoints that are damaged, with the reason

    @property
    def server(self) -> ServerState:
        return self.state.server


@dataclass
class _File:
    """A file with the states of some clients."""

    clients: list[int]
    size: int  # bytes
    sha256: str


@dataclass
class Checkpoints:
    """Writes the checkpoints of one run. It keeps track of which client's state is in which file."""

    folder: Path
    fingerprint: str  # of the run's config
    written: int = 0  # bytes of tensors so far; benchmarks read it
    _files: dict[str, _File] = field(default_factory=dict)  # by file name
    _saved: dict[int, tuple[str, weakref.ref[Any]]] = field(default_factory=dict)  # client → (file name, state)

    def save(self, state: State) -> Path:
        """Write the state of a finished round, then delete old checkpoints. Returns the path of the JSON file."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        path = self.folder / f"round-{state.round:06d}.json"
        server = path.with_suffix(".safetensors")
        flat = server_tensors(state)
        replace_file(server, lambda temporary: save_file(flat, temporary))
        self.written += bytes_of(flat)
        self._save_clients(state)
        files = {name: {"sha256": file.sha256, "of": self._current_clients(name)} for name, file in self._files.items()}
        note = {
            "format": _FORMAT,
            "round": state.round,
            "config": self.fingerprint,
            "tensors_sha256": sha256_of(server),
            "clients": files,
            "met": sorted(state.server.met),
            "cost": state.cost.as_json(),
        }
        if state.pending:
            note["pending"] = numbers_of(state.pending)
        _write_note(path, note)
        tidy(self.folder)
        return path

    def resumed(self, found: Checkpoint) -> None:
        """Continue from a checkpoint: client states that are in its files are not written again."""
        note = parse_json(found.path.read_text(encoding="utf-8"))
        self._files = {}
        self._saved = {}
        for name, entry in note.get("clients", {}).items():
            size = (self.folder / name).stat().st_size
            self._files[name] = _File(list(entry["of"]), size, entry["sha256"])
            for client in entry["of"]:
                self._saved[client] = name, weakref.ref(found.state.clients.entries[client])

    def _save_clients(self, state: State) -> None:
        """Write the changed client states into a new file; all of them, if too much of the old files is out of date."""
        entries = state.clients.entries
        self._saved = {k: saved for k, saved in self._saved.items() if k in entries}
        changed = [k for k, entry in sorted(entries.items()) if not self._is_saved(k, entry)]
        self._drop_unused_files()
        if changed:
            self._write(state, changed)
        current = sum(self._current_bytes(name) for name in self._files)
        if sum(file.size for file in self._files.values()) > _WASTE * current + (1 << 20):
            self._write(state, sorted(entries))

    def _is_saved(self, client: int, entry: Any) -> bool:
        """Whether this very object was written. A changed state is a new object, so identity is enough."""
        return client in self._saved and self._saved[client][1]() is entry

    def _write(self, state: State, clients: list[int]) -> None:
        number = sum(name.startswith(f"clients-{state.round:06d}") for name in self._files)
        name = f"clients-{state.round:06d}{f'-{number}' if number else ''}.safetensors"
        held = {k: state.clients[k] for k in clients}
        flat = client_tensors(held)
        replace_file(self.folder / name, lambda temporary: save_file(flat, temporary))
        size = bytes_of(flat)
        self.written += size
        self._files[name] = _File(clients, size, sha256_of(self.folder / name))
        self._saved |= {k: (name, weakref.ref(state.clients.entries[k])) for k in clients}
        self._drop_unused_files()

    def _current_clients(self, name: str) -> list[int]:
        """The clients whose newest state is in this file."""
        return [k for k in self._files[name].clients if self._saved.get(k, ("",))[0] == name]

    def _current_bytes(self, name: str) -> float:
        """An estimate of the bytes of a file that are not out of date: all its clients count as equally large."""
        file = self._files[name]
        return file.size * len(self._current_clients(name)) / max(len(file.clients), 1)

    def _drop_unused_files(self) -> None:
        self._files = {name: file for name, file in self._files.items() if self._current_clients(name)}


def save(folder: Path, state: State, fingerprint: str) -> Path:
    """Write one checkpoint with the states of all clients."""
    return Checkpoints(folder, fingerprint).save(state)


def tidy(folder: Path) -> None:
    """Delete all but the newest KEPT checkpoints, and the temporary files of a run that was killed."""
    newest = _newest_first(folder)[:KEPT]
    kept = {whole.stem for whole in newest} | {Path(name).stem for whole in newest for name in _client_files(whole)}
    for pattern in (".*", "round-*.json", "round-*.safetensors", "clients-*.safetensors"):
        for path in folder.glob(pattern):
            if path.stem not in kept:
                path.unlink()


def _client_files(path: Path) -> list[str]:
    """The names of the clients' files that a checkpoint lists."""
    try:
        return list(parse_json(path.read_text(encoding="utf-8")).get("clients", {}))
    except (OSError, ValueError, AttributeError):
        return []


def load_newest(
    folder: Path, model: Tensors, fingerprint: str | Collection[str] | None, *, uploads: bool = False
) -> Checkpoint | None:
    """The newest undamaged checkpoint, or None if the folder has no checkpoint.

    `model` has the tensors that are expected, with their shapes. `fingerprint` is that of the config, or several that
    are accepted, or None to accept any. `uploads` says whether the server keeps what clients upload: checkpoints of
    format 1 do not tell uploads apart from what clients keep."""
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
    """Copy the newest undamaged checkpoint into another folder, for a run whose rounds so far are the same.

    Returns whether there was one."""
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
        tensors = dict(renamed_tensors(tensors, uploads))
    return state_of(tensors, note, model, repr(str(path)))


def _verified(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The JSON and the tensors of a checkpoint, after all checksums have been compared.

    A clients' file may have out-of-date states too; only those that the checkpoint lists are returned."""
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
    """The model of the newest checkpoint, not compared with any network; None if there is no checkpoint.

    Raises what reading a damaged file raises: OSError, ValueError, KeyError, SafetensorError."""
    newest = _newest_first(folder)
    if not newest:
        return None
    return {n.removeprefix("model/"): t for n, t in _verified(newest[0])[1].items() if n.startswith("model/")}


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"), reverse=True) if folder.is_dir() else []


def rounds_of(folder: Path) -> list[int]:
    """The rounds for which a folder has a file `round-R.json`, ascending."""
    return sorted(int(path.stem.removeprefix("round-")) for path in _newest_first(folder))


def _seal(note: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()
