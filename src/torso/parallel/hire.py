"""Choose the processes that do whole runs: this one, several on this machine, or those of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import torch

from torso.config import RunConfig
from torso.engine.connect import connected
from torso.errors import RequestError
from torso.parallel.pool import ProcessPool
from torso.runs.devices import device_of

_MOST = 4  # processes; with 4 an H200 was busy all the time (bench/README.md)
_MEMORY = 20 * 2**30  # bytes of the device for each process: a hundred clients of mobilenet take 11 GiB


def processes_for(run: RunConfig) -> int:
    """The number of processes that keep the device busy and fit into its memory. 1 on CPU and on a cluster."""
    if run.engine == "ray":
        return 1
    device = device_of(run)
    if device.type != "cuda":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(min(_MOST, (os.cpu_count() or 1) // 2, memory // _MEMORY), 1)


@contextmanager
def pool(run: RunConfig, processes: int = 1) -> Iterator[ProcessPool | None]:
    """A pool of processes for all calls of `run_together` in the block; None if runs take place in this process."""
    with ExitStack() as stack:
        found: ProcessPool | None = None
        if run.engine == "ray":
            if processes > 1:
                raise RequestError(
                    f"--processes {processes} and run.engine = 'ray': a cluster does runs on its own workers. Give "
                    "one of the two; run.ray.workers sets the number of workers"
                )
            stack.enter_context(connected(run))
            from torso.parallel.ray_pool import RayPool  # needs Ray

            found = stack.enter_context(closing(RayPool(run)))
        elif processes > 1:
            from torso.parallel.processes import LocalPool

            found = stack.enter_context(closing(LocalPool(processes)))
        yield found
