"""Independent runs beside each other in several processes, alone or in packs: who does which, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from torso.config import Config
from torso.errors import PlaceLost
from torso.parallel.crew import Crew, Lost, Task
from torso.parallel.packs import After, Ended, PlannedRun
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped

_TRIES = 3  # processes that one pack may cost
_LOOK = 0.2  # seconds between looks at what runs tell


class Orchestrator:
    """Packs of runs (numbers of plans) that wait, that are under way, and the processes that do them.

    `parcel` gives the data of a run, to be sent; without, processes read the files themselves."""

    def __init__(
        self,
        plans: Sequence[PlannedRun],
        packs: Sequence[Sequence[int]],
        listener: Listener,
        stop: Stop,
        crew: Crew,
        *,
        parcel: Callable[[Config], Any] | None = None,
        after: After | None = None,
    ) -> None:
        self.plans, self.packs, self.stop, self.parcel, self.after = plans, packs, stop, parcel, after
        self.listeners = [listener.beside() for _ in plans]
        self.waiting = list(range(len(packs)))[::-1]
        self.tries = [0] * len(packs)
        self.coming: dict[Any, Any] = {}  # processes that start, by their first word
        self.crew, self.idle = crew, crew.idle
        self.flying: dict[Any, tuple[Any, int]] = {}  # by the call: who does which pack
        self.untried: set[Any] = set()  # that have started here and done nothing yet
        self.unborn: list[Lost] = []  # that could not start, or died at once, one after the other
        self.stopped: dict[int, str] = {}
        self.alive = time.monotonic()  # when there was last somebody to do the work

    def go(self) -> Generator[Ended, None, None]:
        """Each run as it ends: its number, and its result or what went wrong. `Stopped` is raised once all have."""
        left = len(self.plans)
        most = self.crew.room()
        self.crew.letters(False)  # what runs before these have left
        try:
            while self.flying or (self.waiting and not self.stop.asked):
                for ended in self._step(most):
                    left -= 1
                    yield ended
            self._hear()
        except (GeneratorExit, Exception):  # hours of the others' work may be at stake: they end with a checkpoint
            self._wind_down()
            raise
        finally:
            for hand in (*self.coming.values(), *(hand for hand, _ in self.flying.values())):
                self.crew.dismiss(hand)
        if left:
            unfinished = f"{left} of {len(self.plans)} runs are not finished"
            raise Stopped("; ".join([unfinished, *self.stopped.values()]))

    def _wind_down(self) -> None:
        """Nobody wants more, nor to hear of it: who is under way ends with a checkpoint."""
        while self.flying:
            self.crew.letters(True)
            for call in self.crew.first(list(self.flying), _LOOK):
                hand, _ = self.flying.pop(call)
                try:
                    self.crew.answer(call)
                except Exception:  # the error that has led here is the one to tell
                    self.crew.dismiss(hand)
                else:
                    self.idle.append(hand)

    def _step(self, most: int) -> list[Ended]:
        """Give out what waits, wait for what ends."""
        if not self.stop.asked:
            self._hire(most)
            self._send(most)
        if not (self.flying or self.coming):  # a stop since the caller looked
            return []
        done = self.crew.first([*self.flying, *self.coming], _LOOK)
        self._hear()
        ended: list[Ended] = []
        for answer in done:
            if answer in self.coming:
                self._welcome(answer)
            else:
                ended += self._land(answer)
        return ended

    def _hire(self, most: int) -> None:
        if self.idle or self.flying:
            self.alive = time.monotonic()
        elif time.monotonic() - self.alive > self.crew.wait:
            raise PlaceLost(f"a worker for {len(self.waiting)} waiting tasks {self.crew.late()}")
        free = len(self.coming) + len(self.idle)
        for _ in range(min(most - len(self.flying), len(self.waiting)) - free):
            if len(self.unborn) >= _TRIES:
                if not (self.idle or self.flying or self.coming):
                    raise PlaceLost(f"{_TRIES} workers could not start: {self.unborn[-1]}")
                return  # those that are there do the work
            try:
                hand, word = self.crew.hire()
            except Lost as lost:
                self.unborn.append(lost)
            else:
                self.coming[word] = hand

    def _welcome(self, call: Any) -> None:
        hand = self.coming.pop(call)
        try:
            self.crew.answer(call)
        except Lost as lost:
            self.crew.dismiss(hand)
            self.unborn.append(lost)
        else:
            self.idle.append(hand)
            self.untried.add(hand)

    def _send(self, most: int) -> None:
        while self.waiting and self.idle and len(self.flying) < most:
            pack = self.waiting[-1]
            plans = [self.plans[number] for number in self.packs[pack]]
            for plan in plans:
                if plan.folder is not None:
                    plan.folder.parent.mkdir(parents=True, exist_ok=True)
            data = self.parcel(plans[0].config) if self.parcel else None
            hand = self.idle[-1]
            try:
                call = self.crew.ask(hand, Task(self.packs[pack], plans, self.after, data))
            except Lost as lost:  # while it was idle: that is not the pack's fault
                self.crew.dismiss(self.idle.pop())
                self.listeners[self.packs[pack][0]].note("an idle process was lost; another takes its place")
                if hand in self.untried:
                    self.unborn.append(lost)
                continue
            self.waiting.pop()
            self.flying[call] = self.idle.pop(), pack
            self.tries[pack] += 1

    def _hear(self) -> None:
        for number, hook, words in self.crew.letters(self.stop.asked):
            getattr(self.listeners[number], hook)(*words)

    def _land(self, answer: Any) -> list[Ended]:
        """What has come of a pack; one whose process has died goes on in another, from its runs' folders."""
        hand, pack = self.flying.pop(answer)
        numbers, ends = self.packs[pack], list[Result | Exception]()
        try:
            ends = self.crew.answer(answer)
            self.idle.append(hand)
            self.untried.discard(hand)
            self.unborn.clear()
        except Lost as lost:
            self.crew.dismiss(hand)
            what = self._name(numbers[0]) + (f" and {len(numbers) - 1} beside it" if len(numbers) > 1 else "")
            if self.tries[pack] < _TRIES:
                self.waiting.append(pack)
                self.listeners[numbers[0]].note(f"the process of {what} was lost; it goes on in another")
                return []
            ends = [PlaceLost(f"{_TRIES} processes have died over {what}; of the last: {lost}")] * len(numbers)
        except Exception as error:  # not of a run: of what surrounds it
            self.idle.append(hand)
            ends = [error] * len(numbers)
        told = list[Ended]()
        for number, end in zip(numbers, ends, strict=True):
            if isinstance(end, Stopped):
                self.stopped[number] = f"{self._name(number)}: {end}"
            else:
                told.append((number, end))
        return told

    def _name(self, number: int) -> str:
        return self.plans[number].name
