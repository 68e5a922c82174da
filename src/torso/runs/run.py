"""A run from its config to its result: `torso.run`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.data import Federation
from torso.engine import EngineFactory, engines
from torso.errors import RequestError
from torso.results.data_file import ACCEPT, check_data, note_data, where_data_were
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.ending import Stopped
from torso.runs.events import Listener, Stop
from torso.runs.extending import extend
from torso.runs.job import data_of, simulate
from torso.runs.loop import play
from torso.runs.objects import OnRound, OnRoundCall, register_objects
from torso.runs.progress import followed

__all__ = ["Stopped", "run"]


def run(
    config: Config | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool | None = None,
    listener: Listener | None = None,
    stop: Stop | None = None,
    clients: Any = None,
    model: Any = None,
    on_round: OnRoundCall | None = None,
    federation: Federation | None = None,
    engine: EngineFactory | None = None,
    accept_changed_data: bool = False,
) -> Result:
    """Train, measure and record one experiment. `config`: a `Config`, or a mapping with its keys.

    With `out` the run has a folder and can be resumed from it. Without it, the run is only in memory. A finished run
    that is resumed with a larger `train.rounds` continues. A run is resumed with the data with which it began. Other
    data are refused, unless `accept_changed_data`.

    `clients`: your own, in place of `data.source`: a list or a dict by name of `(samples, labels)` or of Datasets, or
    `torso.Clients`. `model`: your own nn.Module, in place of `model.body`; its last linear layer is the head. To resume
    such a run, hand both over again. `on_round(round, accuracy)` is called after every round.

    `progress`: show a bar (on a terminal or in a notebook) or a line for each round (elsewhere) on the error stream. If
    you leave it out, a notebook shows it and a script does not. `listener`: an object of a class that derives from
    `torso.Listener`; the run calls its hooks, whether or not progress is shown.

    `federation`: data that are loaded already, to share them between runs with equal `data.*` and `run.seed`. `engine`:
    an engine's factory, used in place of the one that `run.engine` names.
    """
    with followed(listener, progress) as heard:
        handed = register_objects(Config.of(config), clients, model)  # objects are registered as long as it exists
        told = heard if on_round is None else OnRound(heard, on_round)
        folder = RunFolder.check(Path(out), handed.config, resume, extend=True) if out is not None else None
        if resume and folder is None:
            raise RequestError("resume needs the folder of the run: out is None.")
        if folder and resume and folder.finished:
            return Result.read(folder.path)
        return _simulated(handed.config, folder, resume, told, stop, federation, engine, accept_changed_data)


def _simulated(
    config: Config,
    folder: RunFolder | None,
    resume: bool,
    listener: Listener,
    stop: Stop | None,
    federation: Federation | None,
    engine: EngineFactory | None,
    accept_changed_data: bool,
) -> Result:
    """A run whose clients' data are in this process."""
    before = folder.path if folder and resume else None
    if federation is None:
        federation = data_of(where_data_were(before, config) if before else config)
    changed = _changed_data(before, federation, accept_changed_data) if before else []
    job = simulate(config, federation)
    if job.privacy:
        job.privacy.settle()
    with (engine or engines[config.run.engine])(job.net, job.federation, config.run) as place:
        if folder is None:
            return play(job, place, listener=listener, stop=stop)
        if not resume:
            folder.create()
        with folder.held():
            if folder.finished:  # another process has finished it in the meantime
                return Result.read(folder.path)
            notes = [extend(folder, job)] if folder.extends else []
            notes += changed
            note_data(folder.path, config, federation)
            return play(job, place, replace(folder, extends=0), resume, listener, stop, notes=notes)


def _changed_data(folder: Path, federation: Federation, accept: bool) -> list[str]:
    """A note about data that have changed since the run began. Raises RequestError unless the user accepts that."""
    how = f"torso run --out {shlex.quote(str(folder))} --resume {ACCEPT}"
    changed = check_data(folder, federation, accept=accept, how=how)
    return [f"the data have changed since the run began, as you accept: {changed}"] if changed else []
