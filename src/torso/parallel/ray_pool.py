"""A pool of Ray actors that do whole runs on a cluster, and the mailbox through which runs report."""

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
from torso.data import DataCache, Federation
from torso.engine.batched import Batched
from torso.engine.connect import threads, why_worker_is_late, worker_count, worker_resources
from torso.engine.payloads import Payload, complete_payload, read
from torso.engine.worker import DriverEnvironment
from torso.errors import RequestError
from torso.parallel.pool import AcceleratorBroken, ListenerCall, ProcessLost, Task, do
from torso.results.result import Result
from torso.runs.devices import device_of
from torso.runs.job import data_of

_LOOK = 0.2  # seconds between questions whether to stop
_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)


class RayPool:
    """A pool of actors. They keep the data they have read, and their accelerator, from one task to the next."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.wait = run.ray.wait
        self.idle: list[Any] = []
        self.mailbox = mailbox()

    def capacity(self) -> int:
        return worker_count(self.run)

    def start(self) -> tuple[Any, Any]:
        worker = ray.remote(RayProcess).options(**worker_resources(self.run), max_restarts=0).remote()
        return worker, worker.hello.remote()

    def submit(self, worker: Any, task: Task) -> Any:
        self.answer(worker.hello.remote())  # whether it still lives
        # cloudpickle sends what the user has registered by value; the payload is a reference into the object store
        bare = Task(task.numbers, task.plans, task.after)
        return worker.do.remote(DriverEnvironment.here(), cloudpickle.dumps(bare), task.payload, self.mailbox)

    def finished(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
        done: list[Any] = ray.wait(list(calls), timeout=seconds)[0]
        return done

    def answer(self, call: Any) -> list[Result | Exception]:
        try:
            found: list[Result | Exception] = ray.get(call)
        except _LOST as error:
            raise ProcessLost(str(error).strip().splitlines()[-1]) from None
        return found

    def payload(self, federation: Federation) -> Any:
        return ray.put(complete_payload(federation))

    def listener_calls(self, stop: bool) -> Iterable[ListenerCall]:
        return map(cloudpickle.loads, ray.get(self.mailbox.take.remote(stop)))

    def kill(self, worker: Any) -> None:
        ray.kill(worker)

    def close(self) -> None:
        while self.idle:
            ray.kill(self.idle.pop())
        ray.kill(self.mailbox)

    def why_late(self) -> str:
        return why_worker_is_late(self.run)


def mailbox() -> Any:
    """An actor on this machine to which runs report, and which tells them whether to stop.

    The class is defined in this function, and reports are pickled bytes, so that the actor's process need not import
    Torso, which takes seconds."""

    class Mailbox:
        def __init__(self) -> None:
            self.reports: list[bytes] = []  # pickled ListenerCalls
            self.stop = False

        def post(self, report: bytes) -> None:
            self.reports.append(report)

        def is_to_stop(self) -> bool:
            return self.stop

        def take(self, stop: bool) -> list[bytes]:
            self.stop = stop
            reports, self.reports = self.reports, []
            return reports

    on_this_machine = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=on_this_machine).remote()


class RayProcess:
    """The actor that does tasks, in a process of the cluster."""

    def __init__(self) -> None:
        self.data_cache = DataCache()

    def hello(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def do(
        self, environment: DriverEnvironment, closed: bytes, payload: Payload | None, mailbox: Any
    ) -> list[Result | Exception]:
        environment.apply()
        task: Task = cloudpickle.loads(closed)
        for plan in task.plans:
            if plan.folder is not None and not plan.folder.parent.is_dir():
                return [_elsewhere("--out", plan.folder.parent)] * len(task.plans)
        made = self._read if payload is None else partial(_sent, payload)
        gpus = task.plans[0].config.run.ray.gpus_per_worker
        Batched.company = max(round(1 / gpus), 1) if gpus else 1
        try:
            return do(task, _here, made, partial(_post, mailbox), _Look(mailbox))
        except AcceleratorBroken:
            os._exit(1)  # the driver then gives the task to another process

    def _read(self, config: Config) -> Federation:
        if config.data.root and not Path(config.data.root).exists():
            raise _elsewhere("data.root =", Path(config.data.root))
        return data_of(config, self.data_cache)


def _post(mailbox: Any, listener_call: ListenerCall) -> None:
    ray.get(mailbox.post.remote(cloudpickle.dumps(listener_call)))  # waits, so that reports stay in order and few


class _Look:
    """A function that says whether to stop. It asks the mailbox at most every _LOOK seconds."""

    def __init__(self, mailbox: Any) -> None:
        self.mailbox = mailbox
        self.next = 0.0  # when to ask again
        self.said = False

    def __call__(self) -> bool:
        if time.monotonic() >= self.next:
            self.said = bool(ray.get(self.mailbox.is_to_stop.remote()))
            self.next = time.monotonic() + _LOOK
        return self.said


def _sent(payload: Payload, config: Config) -> Federation:
    federation: Federation = read(payload.text, {}, payload.packed.unload(device_of(config.run), copy=False))
    return federation


def _here(config: Config) -> Config:
    """A config as an actor runs it: with an ordinary engine, on the actor's device."""
    device = "cuda" if config.run.ray.gpus_per_worker else "cpu"
    here = {"engine": "auto", "device": device, "workers": threads(config.run)}
    return config.model_copy(update={"run": config.run.model_copy(update=here)})


def _elsewhere(key: str, folder: Path) -> RequestError:
    return RequestError(
        f"{key} {str(folder)!r} is not there on {socket.gethostname()}, a machine of the cluster. Whole runs read "
        "data and write their folders on the machine on which they run: give a folder on a disk that all machines share"
    )
