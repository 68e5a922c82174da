"""Batched: as many clients as memory holds are stacked into one step, one group after the other.

How many that is, the allocator says: the first group of a kind of work is small, its peak is measured, and the next one
is as large as what is free allows. Should memory run out all the same, the group is halved and done again; work is a
pure function of its clients, so nothing is counted twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self, TypeVar

import torch

from torso.data import Federation
from torso.engine.base import Work, Workspace, engines
from torso.engine.feature_space import OnFeatures
from torso.errors import RunFailed
from torso.learn.lockstep import Lockstep
from torso.nets import Network
from torso.nets.compiled import Compile
from torso.nets.compute import goes_alone, vmap_fails
from torso.personal.store import Store
from torso.precision import activation_type, precision_of

T = TypeVar("T")
_FIRST = 10  # clients of a group while nothing is known of the memory that one takes
_USED = 0.85  # of what is free: the allocator wants room to move


class Batched:
    """One worker, G clients at once; `at_once` 0: what fits."""

    company: ClassVar[int] = 1  # processes that share the device

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
        self.alone = not net.stacks or (self.device.type == "cuda" and self._better_alone(not at_once))  # on samples
        self.at_once = at_once
        self.most = federation.clients  # less once memory has run out
        self.each: dict[str, float] = {}  # bytes of a client, by kind of work
        self.went: dict[str, int] = {}  # clients of the largest group that went well
        self.lockstep = lockstep  # of runs beside this one, whose peak then counts with this one's
        self._workspace: Workspace | None = None

    def _better_alone(self, left_to_us: bool) -> bool:
        """Whether a foreign body is better computed for one client at a time, each step a recording."""
        input, dtype = self.federation.input, activation_type(precision_of(self.precision, self.device))
        if goes_alone(self.net, input):
            return left_to_us
        if why := vmap_fails(self.net, input, self.device, dtype):
            name = type(getattr(self.net.body, "module", self.net.body)).__name__
            warnings.warn(f"{name} is computed one client at a time: {why}", stacklevel=3)
        return bool(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._workspace = None

    def may_look_ahead(self) -> bool:
        """On CPU there is nothing to wait for, and runs that go in lockstep wait for each other."""
        return self.device.type == "cuda" and self.lockstep is None

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """In order, group after group."""
        if self._workspace is None:
            chosen = self.precision, True, self.lockstep, self.compiles
            self._workspace = Workspace.at(self.net, self.federation, *chosen)
        workspace, start = self._workspace.holding(store), 0
        while start < len(clients):
            stacks, left = not self.alone or isinstance(work, OnFeatures), len(clients) - start
            group = clients[start : start + self.size(kind_of(work), stacks, left)]
            try:
                result = self._measured(work, workspace, group)
            except torch.OutOfMemoryError:
                if len(group) == 1 and self.company > 1:
                    raise  # with fewer neighbours it may fit
                if len(group) == 1:
                    raise RunFailed(f"client {group[0]} alone does not fit into the memory of {self.device}") from None
                self.most = len(group) // 2
                self.went.clear()
                if self._workspace.context.recorder is not None:
                    self._workspace.context.recorder.forget()
                torch.cuda.empty_cache()
                continue
            start += len(group)
            self.went[kind_of(work)] = max(len(group), self.went.get(kind_of(work), 0))
            yield result
            del result  # the next group wants its memory

    def size(self, kind: str, stacks: bool = True, left: int = 0) -> int:
        """How many clients the next group of a kind of work has; `stacks`: whether several can be one stack; `left`: as
        many are still to come. Where so many went well before, the allocator is not asked again: it answers slowly."""
        if not stacks:
            return 1
        if self.at_once:
            return min(self.at_once, self.most)
        if 0 < left <= self.went.get(kind, 0):
            return left
        if kind not in self.each:  # nothing is known yet; on CPU it never is, since nobody can be asked
            return min(_FIRST, self.most)
        share = _USED / self.company
        return max(min(int(share * free_bytes(self.device) / self.each[kind]), self.most), 1)

    def _measured(self, work: Work[T], workspace: Workspace, group: Sequence[int]) -> T:
        """Do the work; of the first group of its kind, note the peak of memory."""
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
    """What the memory of a piece of work is known by."""
    return f"{type(work.work).__name__} on features" if isinstance(work, OnFeatures) else type(work).__name__


def free_bytes(device: torch.device) -> int:
    """What the device has left, with what the allocator keeps for itself and uses for nothing."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


engines["batched"] = lambda net, federation, run: Batched(
    net, federation, run.clients_at_once, run.precision, compiles=run.compile
)
