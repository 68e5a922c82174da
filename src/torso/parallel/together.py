"""Several independent runs, each in a folder of its own, as they end: here, in other processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.data import Federation, Shelf
from torso.parallel import hire
from torso.parallel.crew import Crew
from torso.parallel.orchestrator import Orchestrator
from torso.parallel.packs import After, Ended, PlannedRun, packs, side_by_side
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
    after: After | None = None,
    crew: Crew | None = None,
    data: Callable[[Config], Federation] | None = None,
) -> Generator[Ended, None, None]:
    """Run them all, and tell of each as it ends: its place in the list, and its result or what went wrong.

    A folder that holds an unfinished run of its config is resumed. `Stopped` is raised, not told: it ends them all.
    `clients`: how many of a round may stand in one stack; by default 128 on an accelerator, and one run at a time on
    CPU, where a stack is no faster. `after` is called where a run has ended or stopped, with its config there and its
    folder. That is in a process of the crew (`torso.parallel.hire.crew`), which stays for the next call; without a crew
    in this one or, with `run.engine = "ray"`, in one of the cluster for this once. `data` gives the clients of a
    config where they are not to be read as it says; on a cluster they are sent, those of one seed once."""
    plans = [PlannedRun(config, out) for config, out in zip(configs, outs, strict=True)]
    told, ask = listener or Listener(), stop or Stop()
    if plans and (crew is not None or plans[0].config.run.engine == "ray"):
        yield from _in_others(plans, packs(configs, clients), told, ask, after, crew, data)
        return
    made = data or partial(data_of, shelf=Shelf())
    done = 0
    for group in packs(configs, clients):
        if ask.asked:  # while those before were at their end
            raise Stopped(f"stopped with {done} of {len(plans)} runs finished")
        done += len(group)
        listeners = [told.beside() for _ in group]
        ends = side_by_side([plans[place] for place in group], listeners, ask, made, after)
        yield from ((place, end) for place, end in zip(group, ends, strict=True) if not isinstance(end, Stopped))
        for place, end in zip(group, ends, strict=True):
            if isinstance(end, Stopped):
                end.whose = plans[place].name
                raise end


def _in_others(
    plans: Sequence[PlannedRun],
    groups: Sequence[Sequence[int]],
    listener: Listener,
    stop: Stop,
    after: After | None,
    crew: Crew | None,
    data: Callable[[Config], Federation] | None,
) -> Generator[Ended, None, None]:
    """The same in other processes: those of the crew, or of a cluster for this once."""
    with nullcontext(crew) if crew is not None else hire.crew(plans[0].config.run) as those:
        assert those is not None
        parcels: dict[int, Any] = {}

        def parcel(config: Config) -> Any:
            if data is not None and config.run.seed not in parcels:
                parcels[config.run.seed] = those.parcel(data(config))
            return parcels.get(config.run.seed)

        with closing(Orchestrator(plans, groups, listener, stop, those, parcel=parcel, after=after).go()) as ends:
            yield from ends
