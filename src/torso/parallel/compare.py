"""Several methods on the same clients, the same initial weights and the same participants each round."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError
from torso.parallel.crew import crew
from torso.parallel.packs import PlannedRun
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.job import data_of, simulate
from torso.runs.run import Stopped, run

Planned = tuple[Config, str, int]  # with its method and seed


def compare(
    methods: Sequence[str],
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    stop: Stop | None = None,
) -> list[Result]:
    """Run every method at every seed, each in a folder of its own below `out`; one failed run does not end the others.

    Every request is checked before the first run begins. With `resume`, finished runs are read and others continued.
    """
    methods = list(dict.fromkeys(methods))  # named twice, run once
    if any(assignment.partition("=")[0].strip() == "method.name" for assignment in sets):
        raise RequestError("compare takes its methods as arguments, not from --set method.name.")
    if out is not None and (Path(out) / "config.toml").exists():
        raise RequestError(f"--out {str(out)!r} holds a run. Give a folder of its own for the comparison.")
    first = Config.load(config, [f"method.name={methods[0]}", *sets]).run.seed
    plans = [
        (Config.load(config, [f"method.name={method}", *sets, f"run.seed={seed}"]), method, seed)
        for seed in range(first, first + seeds)
        for method in methods
    ]
    folders = [None if out is None else Path(out) / f"{method}-seed{seed}" for _, method, seed in plans]
    again = [resume and folder is not None and (folder / "config.toml").exists() for folder in folders]
    for (chosen, _, _), folder, continued in zip(plans, folders, again, strict=True):
        if folder is not None:
            RunFolder.check(folder, chosen, continued)
    if plans[0][0].run.engine == "ray" and len(plans) > 1:
        return _spread(plans[: len(methods)], plans, folders, listener, stop, out)
    federations: dict[int, Federation] = {}  # of one seed at a time: all its methods share it
    results = []
    for number, ((chosen, _, seed), folder, continued) in enumerate(zip(plans, folders, again, strict=True)):
        if stop is not None and stop.asked:  # while the run before was at its end
            rest = "" if out is None else f". Continue with the same command and {_same(out)}"
            raise Stopped(f"stopped with {number} of {len(plans)} runs finished{rest}")
        if seed not in federations:
            federations = {seed: data_of(chosen)}
        if number == 0:
            for other, _, _ in plans[: len(methods)]:
                simulate(other, federations[seed])
        try:
            result = run(chosen, folder, resume=continued, listener=listener, stop=stop, federation=federations[seed])
        except Stopped as stopped:
            raise Stopped(f"{chosen.method.name} seed {seed}: {stopped}{_again(out)}") from None
        results.append(result)
    return results


def _spread(
    first: Sequence[Planned],
    plans: Sequence[Planned],
    folders: Sequence[Path | None],
    listener: Listener | None,
    stop: Stop | None,
    out: str | Path | None,
) -> list[Result]:
    """The same on a cluster, as whole runs side by side. Requests are checked here before any of them begins."""
    made = {first[0][2]: data_of(first[0][0])}
    for other, _, seed in first:
        simulate(other, made[seed])
    with crew(plans[0][0].run) as hands:
        from torso.parallel.ray_crew import spread  # needs Ray

        assert hands is not None
        chosen = [PlannedRun(config, folder) for (config, _, _), folder in zip(plans, folders, strict=True)]
        try:
            return spread(
                chosen, lambda config: made.pop(config.run.seed, None) or data_of(config), listener, stop, hands
            )
        except Stopped as stopped:
            raise Stopped(f"{stopped}{_again(out)}") from None


def _again(out: str | Path | None) -> str:
    return "" if out is None else f", or the whole comparison with the same command and {_same(out)}"


def _same(out: str | Path) -> str:
    return f"--out {shlex.quote(str(out))} --resume"
