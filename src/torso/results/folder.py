"""The run folder: config.toml, history.jsonl, result.json, analyses.json, checkpoints/."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import IO, Any

from torso.config import Config, CsvConfig, FolderConfig, NpzConfig
from torso.errors import InUse, RequestError
from torso.nets import Tensors
from torso.personal.state import State
from torso.results import checkpoint
from torso.results.checkpoint import Checkpoint, Checkpoints, write_text
from torso.results.result import ANALYSES, Result

_FREE = {
    "run.workers",
    "run.checkpoint_every",
    "run.engine",
    "run.device",
    "run.clients_at_once",
    "run.ray",
    "run.flower",
}
"""Keys that may change between a run and its continuation: they say how, not what."""

_YOUNGER = {
    "personalize.batch_size": 0,
    "data.size": 0,
    "train.min_clients": 1,
    "method.server.clip": 0.0,
    "data.csv": CsvConfig().model_dump(mode="json"),
    "data.npz.test_share": NpzConfig().test_share,
    "data.npz": NpzConfig().model_dump(mode="json", exclude={"test_share"}),  # after what is younger in it
    "data.folder": FolderConfig().model_dump(mode="json"),
}
"""Keys that some checkpoints are older than, with their defaults: such a checkpoint stays valid."""

_PATIENCE = 5.0  # seconds in which another has to let go of a folder


def fingerprint(config: Config) -> str:
    """Equal for configs that describe the same run."""
    tree = config.as_tree()
    for key in _FREE:
        section, _, name = key.partition(".")
        tree[section].pop(name)
    for key, usual in _YOUNGER.items():
        *way, name = key.split(".")
        table: dict[str, Any] = reduce(dict.__getitem__, way, tree)
        if table.get(name) == usual:
            table.pop(name)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


HISTORY = "history.jsonl"


def make(folder: Path) -> None:
    """A folder for what `--out` is to hold, where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> RequestError:
    return RequestError(f"--out {str(folder)!r} cannot be written: {error}. Give another folder.")


@dataclass(frozen=True)
class RunFolder:
    path: Path
    config: Config

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", fingerprint(self.config))

    @classmethod
    def check(cls, path: Path, config: Config, resume: bool) -> RunFolder:
        """Say no before anything is written: to a folder in use, or a resumption of something else."""
        found = path / "config.toml"
        if path.exists() and not path.is_dir():
            raise RequestError(f"--out {str(path)!r} is a file. Give a folder that is empty or not there yet.")
        in_use = path.is_dir() and any(not child.name.startswith(".") for child in path.iterdir())
        if not resume and in_use:
            what = "already holds a run" if found.exists() else "is not empty"
            raise RequestError(
                f"--out {str(path)!r} {what}. Give another folder, or --resume to continue the run there."
            )
        if resume and not (found.exists() and found.stat().st_size):  # empty: killed before it was written
            raise RequestError(
                f"--resume: {str(path)!r} holds no run (no config.toml). Leave --resume out to start one."
            )
        if resume and fingerprint(Config.load(found)) != fingerprint(config):
            raise RequestError(
                f"the run in {str(path)!r} has another config: {_differences(Config.load(found), config)}. "
                "Go on without changes, or give another --out."
            )
        return cls(path, config)

    def create(self) -> None:
        make(self.path)
        try:
            (self.path / "config.toml").touch(exist_ok=False)  # of those who come at the same time, one is let in
            write_text(self.path / "config.toml", self.config.as_toml())  # first: it says that a run is here
            write_text(self.path / HISTORY, "")
        except FileExistsError:  # since `check` looked
            raise RequestError(
                f"--out {str(self.path)!r}: another run has begun there in the meantime. Give each run its own folder."
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs here in the block, in this process or another; one that dies lets go.

        A process that was killed a moment ago may take some time to do so. Where files cannot be locked (on Windows, on
        some shared disks) nobody is kept out."""
        with (self.path / "config.toml").open("r+") as file:  # a shared disk locks only what can be written
            until = time.monotonic() + _PATIENCE
            while not _locked(file):
                if time.monotonic() > until:
                    raise InUse(
                        f"--out {str(self.path)!r}: another process is running there. Wait until it ends, or stop it."
                    )
                time.sleep(0.1)
            _held.add(file)
            try:
                yield
            finally:
                _unlock(file)
                _held.discard(file)

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def newest(self, model: Tensors) -> Checkpoint | None:
        """The newest whole checkpoint, of a network with tensors like these."""
        uploads = self.config.method.server.keeps_uploads
        folder, print_ = self.checkpoints.folder, self.checkpoints.fingerprint
        return checkpoint.load_newest(folder, model, print_, uploads=uploads)

    def resume(self, model: Tensors) -> Checkpoint | None:
        """The newest whole checkpoint; the history is cut back to it."""
        found = self.newest(model)
        if found is not None:
            self.checkpoints.resumed(found)
        done = found.state.round if found else 0
        kept = [line for line in self.history() if line["round"] <= done]
        write_text(self.path / HISTORY, "".join(json.dumps(line) + "\n" for line in kept))
        return found

    def history(self) -> list[dict[str, Any]]:
        """The rounds that it tells of; what is none is left out."""
        return [line for line in self._lines() if line is not None]

    def broken(self) -> tuple[str, ...]:
        """Lines of the history that are no rounds, in words; but for the last: a killed run may leave half of one."""
        numbers = [number for number, line in enumerate(self._lines()[:-1], start=1) if line is None]
        return tuple(f"{self.path / HISTORY}, line {number} is not a round" for number in numbers)

    def _lines(self) -> list[dict[str, Any] | None]:
        path = self.path / HISTORY
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        return [_round_of(line) for line in lines]

    def append(self, line: dict[str, Any]) -> None:
        with (self.path / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def save(self, state: State) -> Path:
        return self.checkpoints.save(state)

    def finish(self, result: Result) -> None:
        checkpoint.tidy(self.path / "checkpoints")
        if result.analyses:
            write_text(self.path / ANALYSES, json.dumps(result.analyses) + "\n")
        write_text(self.path / "result.json", json.dumps(result.as_json(), indent=1) + "\n")


_held: set[IO[str]] = set()
if hasattr(os, "register_at_fork"):  # what a process forks would hold them after its end
    os.register_at_fork(after_in_child=lambda: [file.close() for file in _held])


def _locked(file: IO[str]) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def _unlock(file: IO[str]) -> None:
    """For others, too, that have it open: what a library has forked behind Python's back."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def _round_of(line: str) -> dict[str, Any] | None:
    """What a line of the history says of a round, if it is one as far as a run that goes on needs it."""
    try:
        tree = json.loads(line)
    except ValueError:
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("round"), int):
        return None
    whole = isinstance(tree.get("seconds"), int | float) and isinstance(tree.get("analyses", {}), dict)
    return tree if whole else None


@contextmanager
def own_folder(out: Path | None, name: str) -> Iterator[Path]:
    """`out`, or the next free folder under runs/. That one is made at once, so that a run beside this one takes
    another, and goes again if nothing was put into it: the request was refused."""
    if out is not None:
        yield out
        return
    number = 1
    while not _made(folder := Path("runs") / f"{name}-{number}"):
        number += 1
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # refuses where there is something in it


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise RequestError(f"{str(folder)!r} cannot be made: {error}. Give a folder with --out.") from None
    return True


def _differences(before: Config, now: Config) -> str:
    old, new = _flat(before.as_tree()), _flat(now.as_tree())
    keys = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k) and not is_free(k)]
    return ", ".join(f"{key} was {old.get(key)!r}, now {new.get(key)!r}" for key in keys[:3]) + (
        " …" if len(keys) > 3 else ""
    )


def is_free(key: str) -> bool:
    """Whether a key says how, not what."""
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
