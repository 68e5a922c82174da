"""Which processes do the runs: this one, several of this machine, or those of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import torch

from torso.config import RunConfig
from torso.engine.connect import connected
from torso.errors import RequestError
from torso.parallel.crew import Crew
from torso.runs.devices import device_of

_MOST = 4  # processes, with which an H200 was busy all the time (bench/README.md)
_ROOM = 20 * 2**30  # bytes of a device for each: a hundred clients of mobilenet take 11 GiB


def filling(run: RunConfig) -> int:
    """How many processes keep the device busy, each with room of its own; on CPU, and on a cluster, it is this one."""
    if run.engine == "ray" or (device := device_of(run)).type != "cuda":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(min(_MOST, (os.cpu_count() or 1) // 2, memory // _ROOM), 1)


@contextmanager
def crew(run: RunConfig, processes: int = 1) -> Iterator[Crew | None]:
    """Processes for all calls of `run_together` in the block, where runs take place in others than this one."""
    with ExitStack() as stack:
        hands: Crew | None = None
        if run.engine == "ray":
            if processes > 1:
                raise RequestError(
                    f"--processes {processes} and run.engine = 'ray': a cluster deals runs over its own workers. Give "
                    "one of them; run.ray.workers says how many"
                )
            stack.enter_context(connected(run))
            from torso.parallel.ray_crew import OnRay  # needs Ray

            hands = stack.enter_context(closing(OnRay(run)))
        elif processes > 1:
            from torso.parallel.processes import Processes

            hands = stack.enter_context(closing(Processes(processes)))
        yield hands
