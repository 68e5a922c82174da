"""`torso.compare`: several methods on the same clients, with the same initial weights and the same participants."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.data import Federation
from torso.data.clients import Clients
from torso.errors import RequestError
from torso.parallel.packs import PlannedRun
from torso.parallel.together import run_together
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.job import data_of, simulate
from torso.runs.objects import OnRound, OnRoundCall, register_objects
from torso.runs.progress import followed
from torso.runs.run import Stopped, run


def compare(
    methods: Sequence[str],
    config: Config | Mapping[str, Any] | str | Path | None = None,
    sets: Sequence[str] = (),
    *,
    clients: Any = None,
    model: Any = None,
    on_round: OnRoundCall | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    listener: Listener | None = None,
    stop: Stop | None = None,
) -> list[Result]:
    """Run every method at every seed, each in its own folder below `out`. A failed run does not end the others.

    Every request is checked before the first run begins. With `resume`, finished runs are read and others continued.
    `config`: a file, or what `torso.run` takes. `clients`, `model`, `on_round`, `progress` and `listener` are as in
    `torso.run`.
    """
    _check_request(sets, out)
    methods = list(dict.fromkeys(methods))  # a method that is named twice runs once
    clients = None if clients is None else Clients.of(clients)  # read once for all methods
    with followed(listener, progress) as heard:
        told = heard if on_round is None else OnRound(heard, on_round)
        handed = [
            register_objects(_chosen(config, [f"method.name={method}", *sets]), clients, model) for method in methods
        ]
        first = handed[0].config.run.seed
        plans = []
        for seed in range(first, first + seeds):
            for given, method in zip(handed, methods, strict=True):
                folder = None if out is None else Path(out) / f"{method}-seed{seed}"
                plans.append(PlannedRun(given.config.but(f"run.seed={seed}"), folder))
        resumed = [resume and plan.folder is not None and (plan.folder / "config.toml").exists() for plan in plans]
        for plan, continued in zip(plans, resumed, strict=True):
            if plan.folder is not None:
                RunFolder.check(plan.folder, plan.config, continued)
        data = _DataOfASeed()
        for plan in plans[: len(methods)]:  # the first seed: checks every method's request
            simulate(plan.config, data(plan.config))
        try:
            if len(plans) > 1:
                return _results(plans, told, stop, data)
            # on a cluster a single run has its clients divided over the workers, as `torso.run` does
            plan = plans[0]
            how: Any = {"resume": resumed[0], "progress": False, "listener": told, "stop": stop}
            return [run(plan.config, plan.folder, federation=data(plan.config), **how)]
        except Stopped as stopped:
            name = stopped.whose or (plans[0].name if len(plans) == 1 else "")
            raise _with_way_on(stopped, name, out) from None


def _check_request(sets: Sequence[str], out: str | Path | None) -> None:
    if any(assignment.partition("=")[0].strip() == "method.name" for assignment in sets):
        raise RequestError("compare takes its methods as arguments, not from --set method.name.")
    if out is not None and (Path(out) / "config.toml").exists():
        raise RequestError(f"--out {str(out)!r} holds a run. Give another folder for the comparison.")


class _DataOfASeed:
    """A function that gives a config's federation. That of the latest seed is kept, since all methods share it."""

    def __init__(self) -> None:
        self._kept: dict[int, Federation] = {}

    def __call__(self, config: Config) -> Federation:
        if config.run.seed not in self._kept:
            self._kept = {config.run.seed: data_of(config)}
        return self._kept[config.run.seed]


def _results(
    plans: Sequence[PlannedRun], listener: Listener, stop: Stop | None, data: Callable[[Config], Federation]
) -> list[Result]:
    """The results of all runs, in the order of their plans.

    A failed training is a result. Any other error of a run is raised, and ends the others."""
    configs = [plan.config for plan in plans]
    folders = [plan.folder for plan in plans]
    results: dict[int, Result] = {}
    with closing(run_together(configs, folders, listener=listener, stop=stop, data=data)) as ends:
        for number, end in ends:
            if isinstance(end, Exception):
                raise end
            results[number] = end
    return [results[number] for number in range(len(plans))]


def _chosen(config: Config | Mapping[str, Any] | str | Path | None, sets: Sequence[str]) -> Config:
    if config is None or isinstance(config, str | Path):
        return Config.load(config, sets)
    return Config.of(config).but(*sets)


def _with_way_on(stopped: Stopped, name: str, out: str | Path | None) -> Stopped:
    """A stop with the run's name, if it is known, and with the command that continues the comparison."""
    options = "" if out is None else f"--out {shlex.quote(str(out))} --resume"
    if name:
        whole = f", or the whole comparison with the same command and {options}" if options else ""
        return Stopped(f"{name}: {stopped}{whole}")
    return Stopped(f"{stopped}. Continue with the same command and {options}" if options else str(stopped))
