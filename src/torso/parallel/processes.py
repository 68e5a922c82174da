"""A pool of processes on this machine that do whole runs. While one is busy on the host, others use the accelerator."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, get_context, process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from torso.config import Config
from torso.data import DataCache, Federation
from torso.engine.batched import Batched
from torso.errors import RequestError
from torso.parallel.pool import AcceleratorBroken, ListenerCall, ProcessLost, Task, do, picklable_error
from torso.registry import plugin_entries, register_plugin_entries
from torso.results.result import Result
from torso.runs.devices import device_of
from torso.runs.job import data_of

# only this process handles these signals; the runs in the other processes are then told to end with a checkpoint
_HANDLED_HERE = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 20.0  # seconds in which an idle process has to end


@dataclass(eq=False)
class LocalProcess:
    """This process's handle on another one. It is also the call, since a process has one task at a time."""

    process: SpawnProcess
    pipe: Connection
    said: Any = None  # the answer to the call; None: not answered yet

    @property
    def gone(self) -> bool:
        return self.pipe.closed


class LocalPool:
    """A pool of `count` processes, each with its own copy of the data."""

    wait = 300.0  # seconds; to import torch from a slow disk takes long

    def __init__(self, count: int) -> None:
        self.count = count
        self.idle: list[LocalProcess] = []
        self.context = get_context("spawn")  # a process with CUDA or with threads cannot be forked
        # not an Event: a process that is killed while it holds the Event's lock would block all others
        self.stopping = self.context.RawValue("b", 0)
        self.heard: list[ListenerCall] = []

    def capacity(self) -> int:
        return self.count

    def start(self) -> tuple[LocalProcess, LocalProcess]:
        try:
            ours, theirs = self.context.Pipe()
            with theirs:
                process = self.context.Process(target=serve, args=(theirs, self.stopping, self.count), daemon=True)
                with _signals_blocked():
                    process.start()
        except OSError as error:
            raise ProcessLost(str(error)) from None
        worker = LocalProcess(process, ours)
        return worker, worker

    def submit(self, worker: LocalProcess, task: Task) -> LocalProcess:
        worker.said = None
        written = _written(task)
        try:
            worker.pipe.send_bytes(written)
        except OSError:
            raise ProcessLost(f"process {worker.process.pid} died while it was idle") from None
        return worker

    def finished(self, calls: Sequence[LocalProcess], seconds: float) -> Sequence[LocalProcess]:
        alive = {worker.pipe: worker for worker in calls if not worker.gone}
        for pipe in connection.wait(list(alive), seconds if len(alive) == len(calls) else 0.0):
            self._read(alive[pipe])  # type: ignore[index]  # `wait` returns the objects that it was given
        for worker in alive.values():  # a dead process's pipe stays open as long as a process that it forked holds it
            if worker.said is None and not worker.gone and not worker.process.is_alive():
                self._read(worker)
                if worker.said is None:
                    worker.pipe.close()
        return [worker for worker in calls if worker.gone or worker.said is not None]

    def _read(self, worker: LocalProcess) -> None:
        """Read the pipe until it is empty or the answer has come. Every item is (listener call or None, answer)."""
        try:
            while worker.said is None and worker.pipe.poll():
                # unpickling is safe: this process has started the sender
                listener_call, worker.said = pickle.loads(worker.pipe.recv_bytes())
                if listener_call is not None:
                    self.heard.append(listener_call)
        except (EOFError, OSError):
            worker.pipe.close()

    def answer(self, call: LocalProcess) -> list[Result | Exception]:
        if call.said is None:
            call.process.join(_PATIENCE)
            raise ProcessLost(f"process {call.process.pid} ended with status {call.process.exitcode}")
        if isinstance(call.said, Exception):
            raise call.said
        found: list[Result | Exception] = call.said
        return found

    def payload(self, federation: Federation) -> None:
        """None: each process reads the data itself."""

    def listener_calls(self, stop: bool) -> Iterable[ListenerCall]:
        self.stopping.value = stop
        heard, self.heard = self.heard, []
        return heard

    def kill(self, worker: LocalProcess) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def close(self) -> None:
        """End the idle processes: they exit when their pipe closes, which leaves the accelerator in order."""
        for worker in self.idle:
            worker.pipe.close()
        while self.idle:
            worker = self.idle.pop()
            worker.process.join(_PATIENCE)
            self.kill(worker)

    def why_late(self) -> str:
        return f"has not started within {self.wait:g} s"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM while a process starts.

    The new process inherits the mask, so no signal reaches it before it has set its own handlers. A signal to this
    process is delivered at the end of the block."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # if it started inside the block, it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_HERE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _written(task: Task) -> bytes:
    """A pickle of a task and of what the user has registered.

    Classes and functions are pickled by name, so the other process must be able to import their modules."""
    try:
        return pickle.dumps((plugin_entries(), task))
    except Exception as error:  # a user's object can raise anything
        raise _not_importable(error) from None


def _read(written: bytes) -> Task:
    try:
        things, task = pickle.loads(written)  # safe: it comes from the process that has started this one
    except Exception as error:  # something defined in a notebook or interpreter, which cannot be imported here
        raise _not_importable(error) from None
    register_plugin_entries(things)
    found: Task = task
    return found


def _not_importable(error: Exception) -> RequestError:
    return RequestError(
        f"a method or a part of yours cannot be given to another process: {error}. Define it at the top of a module "
        "that can be imported, or use one process"
    )


def _do_nothing(number: int, frame: object) -> None:
    """A handler that ignores SIGTERM.

    SIG_IGN or a blocked signal would be inherited by the processes that a data source starts here. A pool of them,
    which is ended with SIGTERM, would then never end."""


def serve(pipe: Connection, stopping: Any, count: int) -> None:
    """The main function of a process of the pool: do tasks until the pipe closes. `count`: processes in the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and SIGTERM are handled by the process of the orchestrator
    signal.signal(signal.SIGTERM, _do_nothing)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # it was blocked at the start; see `_do_nothing`
    process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # a source may start processes
    made = partial(data_of, data_cache=DataCache())

    def send(listener_call: ListenerCall | None, answer: Any) -> None:
        pipe.send_bytes(pickle.dumps((listener_call, answer)))  # not pipe.send, which would share tensors' memory

    def post(listener_call: ListenerCall) -> None:
        try:
            send(listener_call, None)
        except OSError:  # the orchestrator's process has ended: the runs end with a checkpoint
            stopping.value = True

    answer: Any = (os.getpid(),)
    while True:
        try:
            send(None, answer)
            written = pipe.recv_bytes()
        except (EOFError, OSError):  # the pipe was closed
            return
        try:
            task = _read(written)
            Batched.company = task.company
            answer = do(task, partial(_here, count), made, post, lambda: bool(stopping.value))
        except AcceleratorBroken as error:
            sys.exit(f"{error}; another process goes on")
        except Exception as error:  # it came from outside the runs themselves
            answer = picklable_error(error)


def _here(count: int, config: Config) -> Config:
    """A config as a process of the pool runs it: on CPU the processes share the cores."""
    if config.run.workers or device_of(config.run).type != "cpu":
        return config
    workers = max((os.cpu_count() or 1) // count, 1)
    return config.model_copy(update={"run": config.run.model_copy(update={"workers": workers})})
