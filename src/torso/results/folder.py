"""The run folder: config.toml, data.json, history.jsonl, result.json, analyses.json, seal.json and checkpoints/."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from torso.config import Config
from torso.errors import RequestError
from torso.locks import held
from torso.nets import Tensors
from torso.personal.state import State
from torso.results import checkpoint
from torso.results.checkpoint import Checkpoint, Checkpoints
from torso.results.files import write_text, writing
from torso.results.history import HISTORY, Line, can_go_on, line_of, problems, read_lines, rounds_in
from torso.results.result import ANALYSES, Result
from torso.results.same_run import differences, fingerprint, only_longer
from torso.results.seal import RESULT, SEAL, seal_text

_EARLIER = "result-after-{}.json"
"""The file of the result that a run had before it was extended; `{}` is its number of rounds."""


def make_folder(folder: Path) -> None:
    """Make the folder of `--out`, if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def no_run_in(folder: Path) -> RequestError:
    """The error of `--resume` for a folder without a run."""
    return RequestError(f"--resume: {str(folder)!r} holds no run (no config.toml). Leave --resume out to start one.")


def _unwritable(folder: Path, error: OSError) -> RequestError:
    reason = error.strerror or str(error)
    return RequestError(f"--out {str(folder)!r} cannot be written: {reason}. Give another folder.")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: checks it, writes its files and reads them again."""

    path: Path
    config: Config
    extends: int = 0  # rounds of the finished run in the folder, if `config` asks for more; otherwise 0

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", fingerprint(self.config))

    @classmethod
    def check(cls, path: Path, config: Config, resume: bool, *, extend: bool = False) -> RunFolder:
        """The folder, or RequestError if it is in use or has another run. Nothing is written yet.

        `extend`: a finished run may continue if only train.rounds has grown."""
        try:
            return cls._checked(path, config, resume, extend)
        except OSError as error:  # for example, a name that is too long, or a folder without read permission
            raise _unwritable(path, error) from None

    @classmethod
    def _checked(cls, path: Path, config: Config, resume: bool, extend: bool) -> RunFolder:
        found = path / "config.toml"
        if path.exists() and not path.is_dir():
            raise RequestError(f"--out {str(path)!r} is a file. Give a folder that is empty or not there yet.")
        in_use = path.is_dir() and any(not child.name.startswith(".") for child in path.iterdir())
        if not resume and in_use:
            what = "already holds a run" if found.exists() else "is not empty"
            raise RequestError(
                f"--out {str(path)!r} {what}. Give another folder, or --resume to continue the run there."
            )
        if not resume:
            return cls(path, config)
        if not (found.exists() and found.stat().st_size):  # an empty file: the run was killed before it was written
            raise no_run_in(path)
        before = Config.load(found)
        if fingerprint(before) == fingerprint(config):
            return cls(path, config)
        if extend and only_longer(before, config):
            if (path / RESULT).exists():
                return cls(path, config, extends=before.train.rounds)
            raise RequestError(
                f"the run in {str(path)!r} has not finished its {before.train.rounds} rounds. Finish it first with: "
                f"torso run --out {shlex.quote(str(path))} --resume"
            )
        raise RequestError(
            f"the run in {str(path)!r} has another config: {differences(before, config)}. "
            "Go on without changes, or give another --out."
        )

    def create(self) -> None:
        """Start a new run: write the config and an empty history."""
        make_folder(self.path)
        path = self.path / "config.toml"
        try:
            path.touch(exist_ok=False)  # of several runs that start at the same time, only one succeeds here
        except FileExistsError:  # another run has started since `check`
            raise RequestError(
                f"--out {str(self.path)!r}: another run has begun there in the meantime. Give each run its own folder."
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from None
        try:
            write_text(path, self.config.as_toml())  # first: this file shows that the folder has a run
            write_text(self.path / HISTORY, "")
        except OSError as error:
            self._discard()
            raise _unwritable(self.path, error) from None

    def _discard(self) -> None:
        """Remove what `create` has written."""
        with suppress(OSError):
            for name in (HISTORY, "config.toml"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold a lock in the block: no other process or thread can run in this folder."""
        busy = f"--out {str(self.path)!r}: another process is running there. Wait until it ends, or stop it."
        with self._lockable() as file, held(file, busy):
            yield

    def _lockable(self) -> IO[str]:
        try:
            return (self.path / "config.toml").open("r+")  # network file systems lock only files opened for writing
        except OSError as error:
            raise _unwritable(self.path, error) from None

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).exists() and not self.extends

    def extend(self) -> RunFolder:
        """Reopen a finished run for more rounds. Its old result stays in a file with its number of rounds."""
        (self.path / RESULT).replace(self.path / _EARLIER.format(self.extends))  # first: now the run is unfinished
        (self.path / SEAL).unlink(missing_ok=True)
        write_text(self.path / "config.toml", self.config.as_toml())
        return replace(self, extends=0)

    @property
    def _fingerprints(self) -> set[str]:
        """The fingerprints of the config now and before each extension: older checkpoints have the older ones."""
        ends = (path.stem.rpartition("-")[2] for path in self.path.glob(_EARLIER.format("*")))
        rounds = {self.extends, *(int(end) for end in ends if end.isdecimal())} - {0}
        shorter = (self.config.but(f"train.rounds={count}") for count in rounds)
        return {fingerprint(config) for config in (self.config, *shorter)}

    def newest(self, model: Tensors) -> Checkpoint | None:
        """The newest undamaged checkpoint; its tensors must have the names and shapes of `model`."""
        uploads = self.config.method.server.keeps_uploads
        return checkpoint.load_newest(self.checkpoints.folder, model, self._fingerprints, uploads=uploads)

    def resume(self, model: Tensors) -> Checkpoint | None:
        """The newest undamaged checkpoint, to continue from. Later rounds are removed from the history."""
        found = self.newest(model)
        if found is not None:
            self.checkpoints.resumed(found)
        done = found.state.round if found else 0
        kept = [round for round in self.history() if round["round"] <= done]
        write_text(self.path / HISTORY, "".join(f"{line_of(round)}\n" for round in kept))
        return found

    def lines(self) -> list[Line]:
        """The lines of the history, checked."""
        return read_lines(self.path, can_go_on)

    def history(self) -> list[dict[str, Any]]:
        """The rounds of the history; damaged lines are left out."""
        return rounds_in(self.lines())

    def broken(self) -> tuple[str, ...]:
        """The problems of the history, in words."""
        return tuple(f"{self.path / HISTORY}, {problem}" for problem in problems(self.lines()))

    def append(self, line: dict[str, Any]) -> None:
        """Append a round to the history."""
        with writing(self.path / HISTORY), (self.path / HISTORY).open("a", encoding="utf-8") as file:
            file.write(line_of(line) + "\n")

    def save(self, state: State) -> Path:
        return self.checkpoints.save(state)

    def finish(self, result: Result) -> None:
        """Write the result and the seal. result.json is written last: its presence means that the run has finished."""
        checkpoint.tidy(self.path / "checkpoints")
        texts = {RESULT: json.dumps(result.as_json(), indent=1) + "\n"}
        if result.analyses:
            texts = {ANALYSES: json.dumps(result.analyses) + "\n", **texts}
        sealed = {name: text.encode() for name, text in texts.items()}
        sealed[HISTORY] = (self.path / HISTORY).read_bytes()
        for name, text in {SEAL: seal_text(sealed), **texts}.items():
            write_text(self.path / name, text)


@contextmanager
def new_run_folder(out: Path | None, name: str) -> Iterator[Path]:
    """`out`, or the next free folder `runs/NAME-K`.

    The latter is made at once, so that a run that starts at the same time takes another one. If it is still empty at
    the end of the block (the request was refused), it is removed."""
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
            folder.rmdir()  # fails if there is something in it


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise RequestError(f"{str(folder)!r} cannot be made: {error}. Give a folder with --out.") from None
    return True
