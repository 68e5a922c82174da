"""Independent runs beside each other on a cluster, alone or in packs: who does which, and what comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from torso.config import Config
from torso.data import Federation
from torso.engine.connect import late, needs, room
from torso.engine.parcels import whole
from torso.engine.worker import Home
from torso.errors import PlaceLost
from torso.runs.away import Hand, Letter, mailbox
from torso.runs.events import Listener, Stop
from torso.runs.result import Result
from torso.runs.run import Stopped
from torso.runs.together import After, Crew, Ended, Plan

_TRIES = 3  # processes that one pack may cost
_LOOK = 0.2  # seconds between looks at the mailbox
_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)


class Spread:
    """Packs of runs (numbers of plans) that wait, that are under way, and the processes that do them.

    `parcel` gives the data of a run as they lie in the object store; without, processes read the files themselves.
    Processes are actors: they keep what they have read, and their accelerator, from one pack to the next, and those of
    a crew from one lot of packs to the next."""

    def __init__(
        self,
        plans: Sequence[Plan],
        packs: Sequence[Sequence[int]],
        listener: Listener,
        stop: Stop,
        *,
        parcel: Callable[[Config], Any] | None = None,
        after: After | None = None,
        crew: Crew | None = None,
    ) -> None:
        self.plans, self.packs, self.stop, self.parcel, self.after = plans, packs, stop, parcel, after
        self.run = plans[0].config.run
        self.listeners = [listener.beside() for _ in plans]
        self.home = Home.here()
        self.mailbox = mailbox()
        self.waiting = list(range(len(packs)))[::-1]
        self.tries = [0] * len(packs)
        self.coming: dict[Any, Any] = {}  # processes that start, by their first word
        self.crew = Crew() if crew is None else crew
        self.idle, self.passing = self.crew.idle, crew is None
        self.flying: dict[Any, tuple[Any, int]] = {}  # by their answer: who does which pack
        self.unborn = 0
        self.stopped: dict[int, str] = {}
        self.over = False  # nobody wants more
        self.alive = time.monotonic()  # when there was last somebody to do the work

    def go(self) -> Generator[Ended, None, None]:
        """Each run as it ends: its number, and its result or what went wrong. `Stopped` is raised once all have."""
        left = len(self.plans)
        most = room(self.run)
        try:
            while self.flying or (self.waiting and not self.stop.asked):
                for ended in self._step(most):
                    left -= 1
                    yield ended
            self._hear()
        except GeneratorExit:  # hours of the others' work may be at stake: they end with a checkpoint
            self.over = True
            while self.flying:
                self._step(most)
            raise
        finally:
            for hand in (*self.coming.values(), *(hand for hand, _ in self.flying.values()), self.mailbox):
                ray.kill(hand)
            if self.passing:
                self.crew.leave()
        if left:
            unfinished = f"{left} of {len(self.plans)} runs are not finished"
            raise Stopped("; ".join([unfinished, *self.stopped.values()]))

    def _step(self, most: int) -> list[Ended]:
        """Give out what waits, wait for what ends."""
        if not (self.stop.asked or self.over):
            self._hire(most)
            self._send(most)
        if not (self.flying or self.coming):  # a stop since the caller looked
            return []
        done, _ = ray.wait([*self.flying, *self.coming], timeout=_LOOK)
        self._hear()
        ended: list[Ended] = []
        for answer in done:
            if answer in self.coming:
                self._welcome(answer)
            else:
                ended += self._land(answer)
        return ended

    def _hire(self, most: int) -> None:
        free = len(self.coming) + len(self.idle)
        for _ in range(min(most - len(self.flying), len(self.waiting)) - free):
            hand = ray.remote(Hand).options(**needs(self.run), max_restarts=0).remote()
            self.coming[hand.hello.remote()] = hand
        if self.idle or self.flying:
            self.alive = time.monotonic()
        elif time.monotonic() - self.alive > self.run.ray.wait:
            raise PlaceLost(f"a worker for {len(self.waiting)} waiting tasks {late(self.run)}")

    def _welcome(self, answer: Any) -> None:
        hand = self.coming.pop(answer)
        try:
            ray.get(answer)
        except _LOST as error:
            self.unborn += 1
            if self.unborn >= _TRIES:
                why = str(error).strip().splitlines()[-1]
                raise PlaceLost(f"{_TRIES} workers could not start: {why}") from None
        else:
            self.idle.append(hand)
            self.unborn = 0

    def _send(self, most: int) -> None:
        while self.waiting and self.idle and len(self.flying) < most:
            pack, hand = self.waiting.pop(), self.idle.pop()
            plans = [self.plans[number] for number in self.packs[pack]]
            for plan in plans:
                if plan.folder is not None:
                    plan.folder.parent.mkdir(parents=True, exist_ok=True)
            data = self.parcel(plans[0].config) if self.parcel else None
            self.tries[pack] += 1
            load = cloudpickle.dumps((plans, self.after))
            self.flying[hand.do.remote(self.home, self.packs[pack], load, data, self.mailbox)] = hand, pack

    def _hear(self) -> None:
        for letter in ray.get(self.mailbox.take.remote(self.stop.asked or self.over)):
            number, hook, words = _opened(letter)
            getattr(self.listeners[number], hook)(*words)

    def _land(self, answer: Any) -> list[Ended]:
        """What has come of a pack; one whose process has died goes on in another, from its runs' folders."""
        hand, pack = self.flying.pop(answer)
        numbers, ends = self.packs[pack], list[Result | Exception]()
        try:
            ends = ray.get(answer)
            self.idle.append(hand)
        except RayTaskError as error:  # not of a run: of what surrounds it
            self.idle.append(hand)
            ends = [error] * len(numbers)
        except _LOST:
            ray.kill(hand)
            what = self._name(numbers[0]) + (f" and {len(numbers) - 1} beside it" if len(numbers) > 1 else "")
            if self.tries[pack] < _TRIES:
                self.waiting.append(pack)
                self.listeners[numbers[0]].note(f"the process of {what} was lost; it goes on in another")
                return []
            ends = [PlaceLost(f"{_TRIES} processes have died over {what}; Ray's logs tell more")] * len(numbers)
        told = list[Ended]()
        for number, end in zip(numbers, ends, strict=True):
            if isinstance(end, Stopped):
                self.stopped[number] = f"{self._name(number)}: {end}"
            else:
                told.append((number, end))
        return told

    def _name(self, number: int) -> str:
        config = self.plans[number].config
        return f"{config.method.name} seed {config.run.seed}"


def _opened(letter: bytes) -> Letter:
    found: Letter = cloudpickle.loads(letter)
    return found


def spread(
    plans: Sequence[Plan], data: Callable[[Config], Federation], listener: Listener | None, stop: Stop | None
) -> list[Result]:
    """All runs, as many at once as `run.ray` has room for; `data` makes those of a seed, once, and they are sent.

    What goes wrong with one is raised, and ends the others."""
    parcels: dict[int, Any] = {}

    def parcel(config: Config) -> Any:
        seed = config.run.seed
        if seed not in parcels:
            parcels[seed] = ray.put(whole(data(config)))
        return parcels[seed]

    results: dict[int, Result] = {}
    alone = [[number] for number in range(len(plans))]
    with closing(Spread(plans, alone, listener or Listener(), stop or Stop(), parcel=parcel).go()) as ends:
        for number, end in ends:
            if isinstance(end, Exception):
                raise end
            results[number] = end
    return [results[number] for number in range(len(plans))]
