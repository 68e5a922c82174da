"""The run folder: config.toml, data.json, history.jsonl, result.json, analyses.json, seal.json, checkpoints/."""

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
"""The result that a run had before it was extended, by its number of rounds."""


def make(folder: Path) -> None:
    """A folder for what `--out` is to hold, where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def no_run_in(folder: Path) -> RequestError:
    return RequestError(f"--resume: {str(folder)!r} holds no run (no config.toml). Leave --resume out to start one.")


def _unwritable(folder: Path, error: OSError) -> RequestError:
    reason = error.strerror or str(error)
    return RequestError(f"--out {str(folder)!r} cannot be written: {reason}. Give another folder.")


@dataclass(frozen=True)
class RunFolder:
    """`extends`: how many rounds the finished run there has, where `config` asks for more."""

    path: Path
    config: Config
    extends: int = 0

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", fingerprint(self.config))

    @classmethod
    def check(cls, path: Path, config: Config, resume: bool, *, extend: bool = False) -> RunFolder:
        """Say no before anything is written: to a folder in use, or a resumption of something else.

        `extend`: a finished run may go on where nothing but train.rounds has grown."""
        try:
            return cls._checked(path, config, resume, extend)
        except OSError as error:  # a name that is too long, a folder that nobody may look into
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
        if not (found.exists() and found.stat().st_size):  # empty: killed before it was written
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
        make(self.path)
        path = self.path / "config.toml"
        try:
            path.touch(exist_ok=False)  # of those who come at the same time, one is let in
        except FileExistsError:  # since `check` looked
            raise RequestError(
                f"--out {str(self.path)!r}: another run has begun there in the meantime. Give each run its own folder."
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from None
        try:
            write_text(path, self.config.as_toml())  # first: it says that a run is here
            write_text(self.path / HISTORY, "")
        except OSError as error:
            self._discard()
            raise _unwritable(self.path, error) from None

    def _discard(self) -> None:
        """Nothing of a run that could not begin."""
        with suppress(OSError):
            for name in (HISTORY, "config.toml"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs here in the block, in this process or another."""
        busy = f"--out {str(self.path)!r}: another process is running there. Wait until it ends, or stop it."
        with self._lockable() as file, held(file, busy):
            yield

    def _lockable(self) -> IO[str]:
        try:
            return (self.path / "config.toml").open("r+")  # a shared disk locks only what can be written
        except OSError as error:
            raise _unwritable(self.path, error) from None

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).exists() and not self.extends

    def extend(self) -> RunFolder:
        """Open a finished run again for more rounds. Its result stays, under the number of its rounds."""
        (self.path / RESULT).replace(self.path / _EARLIER.format(self.extends))  # first: from now on it is unfinished
        (self.path / SEAL).unlink(missing_ok=True)
        write_text(self.path / "config.toml", self.config.as_toml())
        return replace(self, extends=0)

    @property
    def _fingerprints(self) -> set[str]:
        """Of the config, and as it was before the run was extended: older checkpoints carry those."""
        ends = (path.stem.rpartition("-")[2] for path in self.path.glob(_EARLIER.format("*")))
        rounds = {self.extends, *(int(end) for end in ends if end.isdecimal())} - {0}
        shorter = (self.config.but(f"train.rounds={count}") for count in rounds)
        return {fingerprint(config) for config in (self.config, *shorter)}

    def newest(self, model: Tensors) -> Checkpoint | None:
        """The newest whole checkpoint, of a network with tensors like these."""
        uploads = self.config.method.server.keeps_uploads
        return checkpoint.load_newest(self.checkpoints.folder, model, self._fingerprints, uploads=uploads)

    def resume(self, model: Tensors) -> Checkpoint | None:
        """The newest whole checkpoint; the history is cut back to it."""
        found = self.newest(model)
        if found is not None:
            self.checkpoints.resumed(found)
        done = found.state.round if found else 0
        kept = [round for round in self.history() if round["round"] <= done]
        write_text(self.path / HISTORY, "".join(f"{line_of(round)}\n" for round in kept))
        return found

    def lines(self) -> list[Line]:
        return read_lines(self.path, can_go_on)

    def history(self) -> list[dict[str, Any]]:
        """The rounds that it tells of; what is none is left out."""
        return rounds_in(self.lines())

    def broken(self) -> tuple[str, ...]:
        """What is wrong with the history, in words."""
        return tuple(f"{self.path / HISTORY}, {problem}" for problem in problems(self.lines()))

    def append(self, line: dict[str, Any]) -> None:
        with writing(self.path / HISTORY), (self.path / HISTORY).open("a", encoding="utf-8") as file:
            file.write(line_of(line) + "\n")

    def save(self, state: State) -> Path:
        return self.checkpoints.save(state)

    def finish(self, result: Result) -> None:
        """Write the result and what seals it; result.json comes last and says that the run has ended."""
        checkpoint.tidy(self.path / "checkpoints")
        texts = {RESULT: json.dumps(result.as_json(), indent=1) + "\n"}
        if result.analyses:
            texts = {ANALYSES: json.dumps(result.analyses) + "\n", **texts}
        sealed = {name: text.encode() for name, text in texts.items()}
        sealed[HISTORY] = (self.path / HISTORY).read_bytes()
        for name, text in {SEAL: seal_text(sealed), **texts}.items():
            write_text(self.path / name, text)


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
