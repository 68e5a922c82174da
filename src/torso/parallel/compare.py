"""Several methods on the same clients, the same initial weights and the same participants each round."""

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
from torso.parallel.together import run_together
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.job import data_of, simulate
from torso.runs.objects import OnRound, OnRoundCall, hand_over
from torso.runs.progress import is_shown, showing
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
    """Run every method at every seed, each in a folder of its own below `out`; one failed run does not end the others.

    Every request is checked before the first run begins. With `resume`, finished runs are read and others continued.
    `config`: a file, or what `torso.run` takes. `clients`, `model`, `on_round`, `progress` and `listener` are as in
    `torso.run`.
    """
    if is_shown(progress):
        with showing(listener) as heard:
            return compare(
                methods,
                config,
                sets,
                clients=clients,
                model=model,
                on_round=on_round,
                seeds=seeds,
                out=out,
                resume=resume,
                progress=False,
                listener=heard,
                stop=stop,
            )
    methods = list(dict.fromkeys(methods))  # named twice, run once
    if any(assignment.partition("=")[0].strip() == "method.name" for assignment in sets):
        raise RequestError("compare takes its methods as arguments, not from --set method.name.")
    if out is not None and (Path(out) / "config.toml").exists():
        raise RequestError(f"--out {str(out)!r} holds a run. Give a folder of its own for the comparison.")
    clients = None if clients is None else Clients.of(clients)  # read once for all methods
    handed = [hand_over(_chosen(config, [f"method.name={method}", *sets]), clients, model) for method in methods]
    first = handed[0].config.run.seed
    if on_round is not None:
        listener = OnRound(listener or Listener(), on_round)
    plans = [
        (given.config.but(f"run.seed={seed}"), method, seed)
        for seed in range(first, first + seeds)
        for given, method in zip(handed, methods, strict=True)
    ]
    folders = [None if out is None else Path(out) / f"{method}-seed{seed}" for _, method, seed in plans]
    again = [resume and folder is not None and (folder / "config.toml").exists() for folder in folders]
    for (chosen, _, _), folder, continued in zip(plans, folders, again, strict=True):
        if folder is not None:
            RunFolder.check(folder, chosen, continued)
    federations: dict[int, Federation] = {}  # of one seed at a time: all its methods share it

    def data(chosen: Config) -> Federation:
        nonlocal federations
        if chosen.run.seed not in federations:
            federations = {chosen.run.seed: data_of(chosen)}
        return federations[chosen.run.seed]

    for chosen, _, _ in plans[: len(methods)]:
        simulate(chosen, data(chosen))
    try:
        if len(plans) == 1:  # its clients, not the run as a whole, are what a cluster shares out
            (chosen, _, _), (folder,), (continued,) = plans[0], folders, again
            how: Any = {"resume": continued, "progress": False, "listener": listener, "stop": stop}
            return [run(chosen, folder, federation=data(chosen), **how)]
        return _results([chosen for chosen, _, _ in plans], folders, listener, stop, data)
    except Stopped as stopped:
        alone = f"{plans[0][1]} seed {plans[0][2]}" if len(plans) == 1 else ""
        raise _told(stopped, stopped.whose or alone, out) from None


def _results(
    configs: Sequence[Config],
    folders: Sequence[Path | None],
    listener: Listener | None,
    stop: Stop | None,
    data: Callable[[Config], Federation],
) -> list[Result]:
    """All runs, in the order of their configs; what goes wrong with one beside its training ends the others."""
    results: dict[int, Result] = {}
    with closing(run_together(configs, folders, listener=listener, stop=stop, data=data)) as ends:
        for number, end in ends:
            if isinstance(end, Exception):
                raise end
            results[number] = end
    return [results[number] for number in range(len(configs))]


def _chosen(config: Config | Mapping[str, Any] | str | Path | None, sets: Sequence[str]) -> Config:
    if config is None or isinstance(config, str | Path):
        return Config.load(config, sets)
    return Config.of(config).but(*sets)


def _told(stopped: Stopped, whose: str, out: str | Path | None) -> Stopped:
    """Which run it was, where that is known, and how to go on with the comparison."""
    if whose:
        return Stopped(f"{whose}: {stopped}{_again(out)}")
    return Stopped(str(stopped) if out is None else f"{stopped}. Continue with the same command and {_same(out)}")


def _again(out: str | Path | None) -> str:
    return "" if out is None else f", or the whole comparison with the same command and {_same(out)}"


def _same(out: str | Path) -> str:
    return f"--out {shlex.quote(str(out))} --resume"
