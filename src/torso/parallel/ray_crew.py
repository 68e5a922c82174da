"""Whole runs on a Ray cluster: its processes, and where they leave word."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torso.config import Config, RunConfig
from torso.data import Federation, Shelf
from torso.engine.batched import Batched
from torso.engine.connect import late, needs, room, threads
from torso.engine.parcels import Parcel, read, whole
from torso.engine.worker import Home
from torso.errors import RequestError
from torso.parallel.crew import Letter, Lost, Task, Unsound, do
from torso.results.result import Result
from torso.runs.devices import device_of
from torso.runs.job import data_of

_LOOK = 0.2  # seconds between looks at whether to stop
_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)


class OnRay:
    """A crew of actors: they keep what they have read, and their accelerator, from one task to the next."""

    def __init__(self, run: RunConfig) -> None:
        self.run, self.wait = run, run.ray.wait
        self.idle: list[Any] = []
        self.mailbox = mailbox()

    def room(self) -> int:
        return room(self.run)

    def hire(self) -> tuple[Any, Any]:
        hand = ray.remote(RayProcess).options(**needs(self.run), max_restarts=0).remote()
        return hand, hand.hello.remote()

    def ask(self, hand: Any, task: Task) -> Any:
        self.answer(hand.hello.remote())  # whether it still lives
        # what the user has registered travels with the task, by value; data that lie in the object store do not
        bare = Task(task.numbers, task.plans, task.after)
        return hand.do.remote(Home.here(), cloudpickle.dumps(bare), task.parcel, self.mailbox)

    def first(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
        done: list[Any] = ray.wait(list(calls), timeout=seconds)[0]
        return done

    def answer(self, call: Any) -> list[Result | Exception]:
        try:
            found: list[Result | Exception] = ray.get(call)
        except _LOST as error:
            raise Lost(str(error).strip().splitlines()[-1]) from None
        return found

    def parcel(self, federation: Federation) -> Any:
        return ray.put(whole(federation))

    def letters(self, stop: bool) -> Iterable[Letter]:
        return map(cloudpickle.loads, ray.get(self.mailbox.take.remote(stop)))

    def dismiss(self, hand: Any) -> None:
        ray.kill(hand)

    def close(self) -> None:
        while self.idle:
            ray.kill(self.idle.pop())
        ray.kill(self.mailbox)

    def late(self) -> str:
        return late(self.run)


def mailbox() -> Any:
    """An actor where the runs leave word, and learn whether they are to stop; on the machine of whoever asks for it.

    It is made here and the letters are closed, so that its process does without Torso, which takes seconds to load."""

    class Mailbox:
        def __init__(self) -> None:
            self.letters: list[bytes] = []
            self.stop = False

        def post(self, letter: bytes) -> None:
            self.letters.append(letter)

        def is_to_stop(self) -> bool:
            return self.stop

        def take(self, stop: bool) -> list[bytes]:
            self.stop = stop
            letters, self.letters = self.letters, []
            return letters

    with_us = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=with_us).remote()


class RayProcess:
    """A process of the cluster."""

    def __init__(self) -> None:
        self.shelf = Shelf()

    def hello(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def do(self, home: Home, closed: bytes, parcel: Parcel | None, mailbox: Any) -> list[Result | Exception]:
        home.move_in()
        task: Task = cloudpickle.loads(closed)
        for plan in task.plans:
            if plan.folder is not None and not plan.folder.parent.is_dir():
                return [_elsewhere("--out", plan.folder.parent)] * len(task.plans)
        made = self._read if parcel is None else partial(_sent, parcel)
        gpus = task.plans[0].config.run.ray.gpus_per_worker
        Batched.company = max(round(1 / gpus), 1) if gpus else 1
        try:
            return do(task, _here, made, partial(_post, mailbox), _Look(mailbox))
        except Unsound:
            os._exit(1)  # so that the driver takes another

    def _read(self, config: Config) -> Federation:
        if config.data.root and not Path(config.data.root).exists():
            raise _elsewhere("data.root =", Path(config.data.root))
        return data_of(config, self.shelf)


def _post(mailbox: Any, letter: Letter) -> None:
    ray.get(mailbox.post.remote(cloudpickle.dumps(letter)))  # waited for: letters stay in order, and few


class _Look:
    """Asks the mailbox whether to stop, now and then."""

    def __init__(self, mailbox: Any) -> None:
        self.mailbox, self.next, self.said = mailbox, 0.0, False

    def __call__(self) -> bool:
        if time.monotonic() >= self.next:
            self.said = bool(ray.get(self.mailbox.is_to_stop.remote()))
            self.next = time.monotonic() + _LOOK
        return self.said


def _sent(parcel: Parcel, config: Config) -> Federation:
    federation: Federation = read(parcel.text, {}, parcel.cargo.unload(device_of(config.run), copy=False))
    return federation


def _here(config: Config) -> Config:
    """The config as a worker runs it."""
    device = "cuda" if config.run.ray.gpus_per_worker else "cpu"
    here = {"engine": "auto", "device": device, "workers": threads(config.run)}
    return config.model_copy(update={"run": config.run.model_copy(update=here)})


def _elsewhere(key: str, folder: Path) -> RequestError:
    return RequestError(
        f"{key} {str(folder)!r} is not there on {socket.gethostname()}, a machine of the cluster. Whole runs read data "
        "and write their folders where they take place: give a folder on a disk that all machines share"
    )
