"""The batched engine: it stacks as many clients as fit into memory, and computes one group after the other.

The first group of a kind of work is small. Its peak memory is measured, and the following groups are as large as the
free memory allows. If memory runs out all the same, the group is halved and done again. Work is a pure function of its
clients, so nothing is counted twice.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self, TypeVar

import torch

from torso.data import Federation
from torso.engine.base import Work, Workspace, engines
from torso.engine.feature_space import OnFeatures
from torso.errors import DeviceFull
from torso.learn.lockstep import Lockstep
from torso.nets import Network
from torso.nets.compiled import Compile
from torso.nets.compute import runs_one_by_one, vmap_error
from torso.personal.store import Store
from torso.precision import activation_type, precision_of

T = TypeVar("T")
_FIRST = 10  # clients in a group as long as the memory per client has not been measured
_LIMIT = 0.94  # share of the device that all processes together may use; the rest is for CUDA itself
_USED = 0.85  # share of the free memory that a group may take; the allocator needs the rest


class Batched:
    """An engine with one worker that computes G clients as one stack. `at_once`: G; 0: as many as fit into memory."""

    company: ClassVar[int] = 1  # number of processes that share the device

    def __init__(
        self,
        net: Network,
        federation: Federation,
        at_once: int = 0,
        precision: str = "auto",
        lockstep: Lockstep | None = None,
        compiles: Compile = "auto",
    ) -> None:
        self.net = net
        self.federation = federation
        self.device = federation.device
        self.precision = precision
        self.compiles: Compile = compiles
        # whether work on samples is done for one client at a time (work on features is always stacked)
        self.alone = not net.stacks or (self.device.type == "cuda" and self._better_alone(not at_once))
        self.at_once = at_once
        self.most = federation.clients  # upper limit of a group; lowered when memory runs out
        self.each: dict[str, float] = {}  # kind of work -> measured bytes per client
        self.went: dict[str, int] = {}  # kind of work -> clients in the largest group that succeeded
        self.lockstep = lockstep  # joins this run with others in one stack; the measured peak then includes theirs
        self._workspace: Workspace | None = None

    def _better_alone(self, size_is_free: bool) -> bool:
        """Whether a body of another library is faster for one client at a time, with recorded steps.

        `size_is_free`: the user has not set the number of clients in a stack."""
        input = self.federation.input
        dtype = activation_type(precision_of(self.precision, self.device))
        if runs_one_by_one(self.net, input):
            return size_is_free
        why = vmap_error(self.net, input, self.device, dtype)
        if why:
            name = type(getattr(self.net.body, "module", self.net.body)).__name__
            warnings.warn(f"{name} is computed one client at a time: {why}", stacklevel=3)
        return bool(why)

    def __enter__(self) -> Self:
        if self.device.type == "cuda" and self.company > 1:
            # without a limit, what one process has reserved and does not use is missing to the others
            torch.cuda.set_per_process_memory_fraction(_share(self.company), self.device)
        return self

    def __exit__(self, *exc: object) -> None:
        self._workspace = None
        if self.device.type == "cuda" and self.company > 1:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)  # the next run may have fewer beside it

    def may_look_ahead(self) -> bool:
        """True on an accelerator. On CPU nothing is gained, and runs in lockstep wait for each other anyway."""
        return self.device.type == "cuda" and self.lockstep is None

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        if self._workspace is None:
            self._workspace = Workspace.at(
                self.net,
                self.federation,
                self.precision,
                recorded=True,
                lockstep=self.lockstep,
                compiles=self.compiles,
            )
        workspace = self._workspace.holding(store)
        stacks = not self.alone or isinstance(work, OnFeatures)
        start = 0
        while start < len(clients):
            left = len(clients) - start
            group = clients[start : start + self.size(kind_of(work), stacks, left)]
            outcome = self._attempt(work, workspace, group)
            if outcome is None:
                self._make_room(group)
                continue
            start += len(group)
            self.went[kind_of(work)] = max(len(group), self.went.get(kind_of(work), 0))
            yield outcome[0]
            del outcome  # free its memory before the next group is computed

    def _attempt(self, work: Work[T], workspace: Workspace, group: Sequence[int]) -> tuple[T] | None:
        """The result of a group, or None if it does not fit into memory.

        The error ends with this function: as long as it lives, it holds the tensors of the attempt."""
        try:
            return (self._measured(work, workspace, group),)
        except torch.OutOfMemoryError:
            return None

    def _make_room(self, group: Sequence[int]) -> None:
        """Free memory after a group that did not fit, and make the next ones half as large."""
        if len(group) == 1:
            raise DeviceFull(f"client {group[0]} alone does not fit into the memory that {self.device} has left")
        self.most = len(group) // 2
        self.went.clear()
        if self._workspace is not None and self._workspace.context.recorder is not None:
            self._workspace.context.recorder.forget()
        free_memory()

    def size(self, kind: str, stacks: bool = True, left: int = 0) -> int:
        """The number of clients in the next group of a kind of work.

        `stacks`: whether several clients can be one stack. `left`: clients that are not done yet."""
        if not stacks:
            return 1
        if self.at_once:
            return min(self.at_once, self.most)
        if 0 < left <= self.went.get(kind, 0):
            return left  # a group as large as this succeeded before; asking the allocator again would be slow
        if kind not in self.each:  # not measured yet; on CPU it never is, since the allocator there tells nothing
            return min(_FIRST, self.most)
        free = free_bytes(self.device, self.company)
        return max(min(int(_USED * free / self.each[kind]), self.most), 1)

    def _measured(self, work: Work[T], workspace: Workspace, group: Sequence[int]) -> T:
        """Do the work. For the first group of its kind, also note the peak of memory per client."""
        kind = kind_of(work)
        if self.device.type != "cuda" or kind in self.each:
            return work(workspace, group)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        result = work(workspace, group)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        self.each[kind] = max(peak / len(group), 1.0)
        return result


def kind_of(work: Work[T]) -> str:
    """The name under which the memory of a kind of work is noted."""
    return f"{type(work.work).__name__} on features" if isinstance(work, OnFeatures) else type(work).__name__


def free_bytes(device: torch.device, company: int = 1) -> int:
    """Bytes on a CUDA device that this process can still use, including what torch's allocator has reserved but not
    used. `company`: processes that share the device; each may use its part, as far as others have left it."""
    free, total = torch.cuda.mem_get_info(device)
    reserved, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return max(min(free + reserved, int(total * _share(company))) - used, 0)


def _share(company: int) -> float:
    """The share of a device that each of several processes may use."""
    return _LIMIT / company if company > 1 else 1.0


def free_memory() -> None:
    """Give memory of the accelerator that nothing uses back to it, for other processes.

    A recorder and its recordings refer to each other, so Python frees them only when it collects garbage."""
    gc.collect()
    torch.cuda.empty_cache()


engines["batched"] = lambda net, federation, run: Batched(
    net, federation, run.clients_at_once, run.precision, compiles=run.compile
)
