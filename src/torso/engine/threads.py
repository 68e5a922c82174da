"""The one-by-one engine: each worker thread computes one client at a time, or a stack of small ones.

On CPU every operation uses one thread, and the workers share the cores. That is faster than one client on all cores.
The sums inside an operation then never depend on the number of threads, so neither do the results.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

import torch

from torso.data import Federation
from torso.engine.base import Work, Workspace, engines
from torso.engine.memory import keep_freed_memory
from torso.engine.stacks import Stacker
from torso.nets import Network
from torso.personal.store import Store

T = TypeVar("T")


class OneByOne:
    """An engine that computes clients in parallel threads; on an accelerator, in a single thread.

    `at_once`: clients in the stack of each thread. 0: as many as keep their bits if that is faster (stacks.py), else
    one."""

    def __init__(
        self, net: Network, federation: Federation, workers: int = 0, at_once: int = 0, precision: str = "auto"
    ) -> None:
        self.net = net
        self.federation = federation
        on_cpu = federation.device.type == "cpu"
        self.workers = (workers or os.cpu_count() or 1) if on_cpu else 1
        self.at_once = at_once or (0 if on_cpu else 1)
        self._stacks = Stacker(net, federation)
        self.precision = precision
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._threads_before = 0

    def __enter__(self) -> Self:
        keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        # the initializer repeats the setting in each thread: otherwise a new thread takes it over only at torch's first
        # parallel loop, and a product of MKL or oneDNN before that would use all cores and round differently
        self._pool = ThreadPoolExecutor(self.workers, "torso", initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None
        torch.set_num_threads(self._threads_before)

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """Results in order. The number of unread results is bounded, so memory does not grow with the clients."""
        if self._pool is None:
            raise RuntimeError("the engine maps only inside its `with` block")
        waiting: deque[Future[T]] = deque()
        size = self.at_once or self._stacks(work, clients)
        try:
            for start in range(0, len(clients), size):
                if len(waiting) >= 2 * self.workers:
                    yield waiting.popleft().result()
                waiting.append(self._pool.submit(self._do, work, clients[start : start + size], store))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _do(self, work: Work[T], group: Sequence[int], store: Store | None) -> T:
        workspace: Workspace | None = getattr(self._local, "workspace", None)
        if workspace is None:
            workspace = Workspace.at(self.net, self.federation, self.precision, exact=not self.at_once)
            self._local.workspace = workspace
        return work(workspace.holding(store), group)


engines["one-by-one"] = lambda net, federation, run: OneByOne(
    net, federation, run.workers, run.clients_at_once, run.precision
)
