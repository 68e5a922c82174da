"""Run many configs, each in its folder. A finished run is read instead, and runs with the same rounds train once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from torso.config import Config
from torso.errors import DeviceFull, RequestError, TorsoError
from torso.papers.experiments.provenance import note_machine
from torso.papers.experiments.reuse import begin_at, delete_large_checkpoints, opening_key, training_key
from torso.parallel.pool import ProcessPool, without_models
from torso.parallel.together import run_together
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.events import Listener, Stop


class NamedConfig(Protocol):
    """A protocol: a config, and the name of its run folder."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Config: ...


class BatchListener(Listener):
    """A listener of many runs, which learns in advance how many there are."""

    def expect(self, title: str, runs: int, rounds: int, done: int) -> None:
        """Before the first run: `runs` runs with `rounds` rounds in all will follow; `done` were finished before."""


def announce(listener: Listener | None, title: str, runs: int, rounds: int, done: int) -> None:
    """Call `expect` of a BatchListener, if there are runs."""
    if runs and isinstance(listener, BatchListener):
        listener.expect(title, runs, rounds, done)


P = TypeVar("P", bound=NamedConfig)


def run_all(
    waiting: Sequence[P],
    folder: Path,
    known: dict[str, Path],
    listener: Listener | None,
    stop: Stop | None,
    pool: ProcessPool | None = None,
) -> Generator[tuple[P, Result | Exception], None, None]:
    """Run the configs below the folder, and yield each with its result as it ends. A run that breaks does not end the
    others. Nor does one that does not fit into the device's memory: it is told at the end, by a RequestError.

    Results have no models: a caller that keeps all of them would keep the data of every run in memory.

    `known`: training key → folder of a finished run to begin at (`finished_runs`). Runs that finish here are added."""
    misfits: list[tuple[str, Exception]] = []
    for wave in waves(waiting, folder, known):
        configs, places = [run.config for run in wave], [folder / run.name for run in wave]
        ends = run_together(configs, places, listener=listener, stop=stop, after=note_machine, pool=pool)
        with closing(ends):
            for number, result in ends:
                if isinstance(result, DeviceFull | torch.OutOfMemoryError | MemoryError):
                    misfits.append((wave[number].name, result))
                    continue
                _check(result)
                yield wave[number], without_models(result) if isinstance(result, Result) else result
                delete_large_checkpoints([places[number]])
    _raise_misfits(misfits)


def _check(result: Result | Exception) -> None:
    """Raise an error of the request, or one that no run should meet: it ends all runs."""
    if isinstance(result, RequestError):
        raise result
    if isinstance(result, Exception) and not isinstance(result, TorsoError | RuntimeError):
        raise result


def _raise_misfits(misfits: Sequence[tuple[str, Exception]]) -> None:
    """Tell of the runs that the device has too little memory for."""
    if misfits:
        name, error = misfits[0]
        who = f"{name} and {len(misfits) - 1} more do" if misfits[1:] else f"{name} does"
        raise RequestError(
            f"{who} not fit into the memory of the device ({str(error).splitlines()[0]}). The other runs are finished. "
            "For these: fewer clients at once (--set run.clients_at_once=10), fewer --processes, or a larger device "
            "(--device cuda:N)"
        )


def finished(config: Config, folder: Path) -> Result | None:
    """The result of a run, or None if it is not finished. Raises a RequestError if the folder holds another run."""
    if not (folder / "config.toml").exists():
        RunFolder.check(folder, config, resume=False)
        return None
    RunFolder.check(folder, config, resume=True)
    return Result.read(folder) if (folder / "result.json").exists() else None


def waves(waiting: Sequence[P], folder: Path, known: dict[str, Path]) -> Iterator[list[P]]:
    """The runs in groups, in the order in which they can begin: first those that train from the start, then those that
    begin at the end of another."""
    left = {run.name: run for run in waiting}
    keys = {run.name: training_key(run.config) for run in waiting}
    opens = {run.name: opening_key(run.config) for run in waiting}
    while left:
        leaders: dict[str, str] = {}
        for name in left:
            if keys[name] not in known:
                leaders.setdefault(keys[name], name)
        wave = [
            run
            for name, run in left.items()
            if keys[name] in known or (leaders[keys[name]] == name and opens[name] not in leaders)
        ]
        for run in wave:
            donor = known.get(keys[run.name]) or known.get(opens[run.name])
            if donor is not None and not (folder / run.name / "config.toml").exists():
                begin_at(donor, run.config, folder / run.name)
            del left[run.name]
        yield wave
        known |= _now_finished(wave, folder, keys)


def _now_finished(wave: Sequence[NamedConfig], folder: Path, keys: Mapping[str, str]) -> dict[str, Path]:
    places = {keys[run.name]: folder / run.name for run in wave}
    return {key: place for key, place in places.items() if _can_be_begun_at(place)}


def _can_be_begun_at(place: Path) -> bool:
    return (place / "checkpoints").is_dir() and (place / "result.json").exists() and Result.read(place).ok
