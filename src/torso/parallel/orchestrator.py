"""The orchestrator: it divides independent runs, alone or in packs, over a pool of processes and collects results."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from torso.config import Config
from torso.errors import DeviceFull, NoWorkerLeft
from torso.parallel.packs import AfterRun, PlannedRun, RunEnd
from torso.parallel.pool import ProcessLost, ProcessPool, Task
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped

_TRIES = 3  # processes that may die over one pack; also: that may fail to start in a row
_LOOK = 0.2  # seconds between polls of what the runs report
_MEMORY_WAIT = 15.0  # seconds until a pack that ran out of memory is tried again


class Orchestrator:
    """Gives packs of runs (their numbers in `plans`) to the processes of a pool.

    `payload` gives a run's data in the form in which they are sent. Without it, processes read the files themselves."""

    def __init__(
        self,
        plans: Sequence[PlannedRun],
        packs: Sequence[Sequence[int]],
        listener: Listener,
        stop: Stop,
        pool: ProcessPool,
        *,
        payload: Callable[[Config], Any] | None = None,
        after: AfterRun | None = None,
    ) -> None:
        self.plans = plans
        self.packs = packs
        self.stop = stop
        self.payload = payload
        self.after = after
        self.listeners = [listener.beside() for _ in plans]
        self.waiting = list(range(len(packs)))[::-1]  # indices of packs that wait; the next one is the last
        self.tries = [0] * len(packs)  # how often each pack was given to a process
        self.pool = pool
        self.idle = pool.idle
        self.starting: dict[Any, Any] = {}  # call -> the process that is starting
        self.running: dict[Any, tuple[Any, int]] = {}  # call -> the process, and the index of its pack
        self.untried: set[Any] = set()  # processes that started here and have not finished a task yet
        self.failed_starts: list[ProcessLost] = []  # in a row: processes that could not start, or died before a task
        self.stopped: dict[int, str] = {}  # run -> the message with which it stopped
        self.alive = time.monotonic()  # the last time at which any process was idle or running
        self.most = pool.capacity()  # how many processes work at the same time; lowered when memory runs out
        self.send_after = 0.0  # the time from which packs are given to processes again

    def go(self) -> Generator[RunEnd, None, None]:
        """Each run as it ends: its number, and its result or error. Raises `Stopped` at the end if runs are left."""
        left = len(self.plans)
        self.pool.listener_calls(False)  # drops what earlier runs of this pool have reported
        try:
            while self.running or (self.waiting and not self.stop.asked):
                for ended in self._step():
                    left -= 1
                    yield ended
            self._forward_events()
        except (GeneratorExit, Exception):  # the other runs may have hours of work: let them write a checkpoint
            self._wind_down()
            raise
        finally:
            for worker in (*self.starting.values(), *(worker for worker, _ in self.running.values())):
                self.pool.kill(worker)
        if left:
            unfinished = f"{left} of {len(self.plans)} runs are not finished"
            raise Stopped("; ".join([unfinished, *self.stopped.values()]))

    def _wind_down(self) -> None:
        """Have the running packs end with a checkpoint, and drop their answers."""
        while self.running:
            self.pool.listener_calls(True)
            for call in self.pool.finished(list(self.running), _LOOK):
                worker, _ = self.running.pop(call)
                try:
                    self.pool.answer(call)
                except Exception:  # not raised: the error that caused the wind-down is
                    self.pool.kill(worker)
                else:
                    self.idle.append(worker)

    def _step(self) -> list[RunEnd]:
        """Give waiting packs to processes, then wait a moment for answers. Returns the runs that have ended."""
        if not self.stop.asked:
            self._start_processes()
            self._send()
        if not (self.running or self.starting):  # the stop came after the caller looked, or packs wait for memory
            time.sleep(_LOOK)
            return []
        done = self.pool.finished([*self.running, *self.starting], _LOOK)
        self._forward_events()
        ended: list[RunEnd] = []
        for call in done:
            if call in self.starting:
                self._has_started(call)
            else:
                ended += self._has_ended(call)
        return ended

    def _start_processes(self) -> None:
        """Start processes for waiting packs, as long as there are fewer than may work at the same time."""
        if self.idle or self.running:
            self.alive = time.monotonic()
        elif time.monotonic() - self.alive > self.pool.wait:
            raise NoWorkerLeft(f"a worker for {len(self.waiting)} waiting tasks {self.pool.why_late()}")
        free = len(self.starting) + len(self.idle)
        needed = min(self.most - len(self.running), len(self.waiting)) - free
        for _ in range(needed):
            if len(self.failed_starts) >= _TRIES:
                if not (self.idle or self.running or self.starting):
                    raise NoWorkerLeft(f"{_TRIES} workers could not start: {self.failed_starts[-1]}")
                return  # the processes that exist do the work
            try:
                worker, call = self.pool.start()
            except ProcessLost as lost:
                self.failed_starts.append(lost)
            else:
                self.starting[call] = worker

    def _has_started(self, call: Any) -> None:
        worker = self.starting.pop(call)
        try:
            self.pool.answer(call)
        except ProcessLost as lost:
            self.pool.kill(worker)
            self.failed_starts.append(lost)
        else:
            self.idle.append(worker)
            self.untried.add(worker)

    def _send(self) -> None:
        """Give waiting packs to idle processes."""
        if time.monotonic() < self.send_after:
            return
        while self.waiting and self.idle and len(self.running) < self.most:
            pack = self.waiting[-1]
            plans = [self.plans[number] for number in self.packs[pack]]
            for plan in plans:
                if plan.folder is not None:
                    plan.folder.parent.mkdir(parents=True, exist_ok=True)
            data = self.payload(plans[0].config) if self.payload else None
            worker = self.idle[-1]
            try:
                call = self.pool.submit(worker, Task(self.packs[pack], plans, self.after, data, self.most))
            except ProcessLost as lost:  # it died while it was idle, so the pack is not the cause
                self.pool.kill(self.idle.pop())
                self.listeners[self.packs[pack][0]].note("an idle process was lost; another takes its place")
                if worker in self.untried:
                    self.failed_starts.append(lost)
                continue
            self.waiting.pop()
            self.running[call] = self.idle.pop(), pack
            self.tries[pack] += 1

    def _forward_events(self) -> None:
        """Call the listeners of this process with what the runs have reported."""
        for number, hook, arguments in self.pool.listener_calls(self.stop.asked):
            getattr(self.listeners[number], hook)(*arguments)

    def _has_ended(self, call: Any) -> list[RunEnd]:
        """The ends of a pack's runs. If its process has died, the pack waits again, and continues from its folders."""
        worker, pack = self.running.pop(call)
        numbers = self.packs[pack]
        ends: list[Result | Exception] = []
        try:
            ends = self.pool.answer(call)
            self.idle.append(worker)
            self.untried.discard(worker)
            self.failed_starts.clear()
        except ProcessLost as lost:
            self.pool.kill(worker)
            what = self._name(numbers[0])
            if len(numbers) > 1:
                what += f" and {len(numbers) - 1} beside it"
            if self.tries[pack] < _TRIES:
                self.waiting.append(pack)
                self.listeners[numbers[0]].note(f"the process of {what} was lost; it goes on in another")
                return []
            ends = [NoWorkerLeft(f"{_TRIES} processes have died over {what}; of the last: {lost}")] * len(numbers)
        except Exception as error:  # it came from outside the runs themselves
            self.idle.append(worker)
            ends = [error] * len(numbers)
        told: list[RunEnd] = []
        again = [number for number, end in zip(numbers, ends, strict=True) if _no_memory(end)]
        if again and self._wait_for_memory(pack, again):
            ends = [end for end in ends if not _no_memory(end)]
            numbers = [number for number in numbers if number not in again]
        for number, end in zip(numbers, ends, strict=True):
            if isinstance(end, Stopped):
                self.stopped[number] = f"{self._name(number)}: {end}"
            else:
                told.append((number, end))
        return told

    def _wait_for_memory(self, pack: int, again: list[int]) -> bool:
        """Have runs of a pack that ran out of memory wait for another try beside fewer processes. The memory may belong
        to these, or to other programs on the device. False: they have been tried alone, and often enough."""
        beside = min(len(self.running), self.most - 1)
        if not beside and self.tries[pack] >= _TRIES:
            return False
        self.most = max(beside, 1)
        self.send_after = time.monotonic() + _MEMORY_WAIT
        self.packs = [*self.packs, again]
        self.tries.append(0 if beside else self.tries[pack])
        self.waiting.append(len(self.packs) - 1)
        self.listeners[again[0]].note(
            f"the device's memory is used up; tried again with {self.most} {'processes' if beside > 1 else 'process'}"
        )
        return True

    def _name(self, number: int) -> str:
        return self.plans[number].name


def _no_memory(end: Result | Exception) -> bool:
    return isinstance(end, (DeviceFull, torch.OutOfMemoryError))
