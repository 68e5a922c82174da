"""`run_together`: several independent runs, each with its own folder, in this process, in others or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.data import DataCache, Federation
from torso.parallel import hire
from torso.parallel.orchestrator import Orchestrator
from torso.parallel.packs import AfterRun, PlannedRun, RunEnd, packs, side_by_side
from torso.parallel.pool import ProcessPool
from torso.runs.events import Listener, Stop
from torso.runs.job import data_of
from torso.runs.run import Stopped


def run_together(
    configs: Sequence[Config],
    outs: Sequence[Path | None],
    *,
    listener: Listener | None = None,
    stop: Stop | None = None,
    clients: int | None = None,
    after: AfterRun | None = None,
    pool: ProcessPool | None = None,
    data: Callable[[Config], Federation] | None = None,
) -> Generator[RunEnd, None, None]:
    """Do all runs. Yields each as it ends: its index in the list, and its result or error.

    If a folder holds an unfinished run of its config, that run is resumed. `Stopped` is raised, not yielded, since it
    ends all runs.

    `clients`: how many of a round may stand in one stack; by default 128 on an accelerator, and one run at a time on
    CPU, where a stack is no faster.
    `after`: called when a run has ended or stopped, in the process that did it, with the config there and the folder.
    `pool`: the processes that do the runs (`torso.parallel.hire.pool`); they stay for the next call. Without it, runs
    take place in this process, or with `run.engine = "ray"` in processes of the cluster that end with this call.
    `data`: gives the clients of a config, if they are not to be read as the config says. They are sent to a cluster,
    once for each seed."""
    plans = [PlannedRun(config, out) for config, out in zip(configs, outs, strict=True)]
    listener = listener or Listener()
    stop = stop or Stop()
    if plans and (pool is not None or plans[0].config.run.engine == "ray"):
        yield from _in_others(plans, packs(configs, clients), listener, stop, after, pool, data)
        return
    made = data or partial(data_of, data_cache=DataCache())
    done = 0
    for group in packs(configs, clients):
        if stop.asked:  # the stop came after the runs before had passed their last check for it
            raise Stopped(f"stopped with {done} of {len(plans)} runs finished")
        done += len(group)
        listeners = [listener.beside() for _ in group]
        ends = side_by_side([plans[place] for place in group], listeners, stop, made, after)
        for place, end in zip(group, ends, strict=True):
            if not isinstance(end, Stopped):
                yield place, end
        for place, end in zip(group, ends, strict=True):
            if isinstance(end, Stopped):
                end.whose = plans[place].name
                raise end


def _in_others(
    plans: Sequence[PlannedRun],
    groups: Sequence[Sequence[int]],
    listener: Listener,
    stop: Stop,
    after: AfterRun | None,
    pool: ProcessPool | None,
    data: Callable[[Config], Federation] | None,
) -> Generator[RunEnd, None, None]:
    """`run_together` in other processes: those of `pool`, or processes of a cluster that end with this call."""
    with nullcontext(pool) if pool is not None else hire.pool(plans[0].config.run) as processes:
        assert processes is not None
        payloads: dict[int, Any] = {}  # seed -> its data, as they are sent

        def payload(config: Config) -> Any:
            if data is not None and config.run.seed not in payloads:
                payloads[config.run.seed] = processes.payload(data(config))
            return payloads.get(config.run.seed)

        with closing(Orchestrator(plans, groups, listener, stop, processes, payload=payload, after=after).go()) as ends:
            yield from ends
