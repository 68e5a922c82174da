"""Whole runs in processes of this machine: while one is on the host, the kernels of another fill the accelerator."""

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
from torso.data import Federation, Shelf
from torso.engine.batched import Batched
from torso.errors import RequestError
from torso.parallel.crew import Letter, Lost, Task, Unsound, do, portable
from torso.registry import guests, welcome
from torso.results.result import Result
from torso.runs.devices import device_of
from torso.runs.job import data_of

_HEARD_BY_US = (signal.SIGINT, signal.SIGTERM)  # where runs are dealt: those under way end with a checkpoint
_PATIENCE = 20.0  # seconds in which an idle process has to end


@dataclass(eq=False)
class LocalProcess:
    """A process as we see it: it has one call at a time, and `said` is its answer."""

    process: SpawnProcess
    pipe: Connection
    said: Any = None

    @property
    def gone(self) -> bool:
        return self.pipe.closed


class Processes:
    """A crew of so many processes, each with its own copy of the data."""

    wait = 300.0  # to import torch from a slow disk

    def __init__(self, count: int) -> None:
        self.count = count
        self.idle: list[LocalProcess] = []
        self.context = get_context("spawn")  # a fork of a process with CUDA or with threads is none
        self.stopping = self.context.RawValue("b", 0)  # not an Event, whose lock a process would take along when killed
        self.heard: list[Letter] = []

    def room(self) -> int:
        return self.count

    def hire(self) -> tuple[LocalProcess, LocalProcess]:
        try:
            ours, theirs = self.context.Pipe()
            with theirs:
                process = self.context.Process(target=serve, args=(theirs, self.stopping, self.count), daemon=True)
                with _deaf():
                    process.start()
        except OSError as error:
            raise Lost(str(error)) from None
        hand = LocalProcess(process, ours)
        return hand, hand

    def ask(self, hand: LocalProcess, task: Task) -> LocalProcess:
        hand.said = None
        written = _written(task)
        try:
            hand.pipe.send_bytes(written)
        except OSError:
            raise Lost(f"process {hand.process.pid} died while it was idle") from None
        return hand

    def first(self, calls: Sequence[LocalProcess], seconds: float) -> Sequence[LocalProcess]:
        alive = {hand.pipe: hand for hand in calls if not hand.gone}
        for pipe in connection.wait(list(alive), seconds if len(alive) == len(calls) else 0.0):
            self._read(alive[pipe])  # type: ignore[index]  # it is given what we gave
        for hand in alive.values():  # a pipe does not end while what a dead process has forked still holds it
            if hand.said is None and not hand.gone and not hand.process.is_alive():
                self._read(hand)
                if hand.said is None:
                    hand.pipe.close()
        return [hand for hand in calls if hand.gone or hand.said is not None]

    def _read(self, hand: LocalProcess) -> None:
        """What lies in the pipe: letters, until an answer comes."""
        try:
            while hand.said is None and hand.pipe.poll():
                letter, hand.said = pickle.loads(hand.pipe.recv_bytes())  # of a process that we have started
                if letter is not None:
                    self.heard.append(letter)
        except (EOFError, OSError):
            hand.pipe.close()

    def answer(self, call: LocalProcess) -> list[Result | Exception]:
        if call.said is None:
            call.process.join(_PATIENCE)
            raise Lost(f"process {call.process.pid} ended with status {call.process.exitcode}")
        if isinstance(call.said, Exception):
            raise call.said
        found: list[Result | Exception] = call.said
        return found

    def parcel(self, federation: Federation) -> None:
        """Each process reads its own."""

    def letters(self, stop: bool) -> Iterable[Letter]:
        self.stopping.value = stop
        letters, self.heard = self.heard, []
        return letters

    def dismiss(self, hand: LocalProcess) -> None:
        hand.process.kill()
        hand.process.join()
        hand.pipe.close()

    def close(self) -> None:
        """They end by themselves when nobody speaks to them any more, which leaves the accelerator in order."""
        for hand in self.idle:
            hand.pipe.close()
        while self.idle:
            hand = self.idle.pop()
            hand.process.join(_PATIENCE)
            self.dismiss(hand)

    def late(self) -> str:
        return f"has not started within {self.wait:g} s"


@contextmanager
def _deaf() -> Iterator[None]:
    """What starts here never hears Ctrl-C or SIGTERM, also before it can say so; we hear it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would open our ears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD_BY_US)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _written(task: Task) -> bytes:
    """With what the user has registered. Classes and functions go by the names of their modules, which the other
    process imports."""
    try:
        return pickle.dumps((guests(), task))
    except Exception as error:  # whatever objects of others raise
        raise _unspeakable(error) from None


def _read(written: bytes) -> Task:
    try:
        things, task = pickle.loads(written)  # of the process that has started this one
    except Exception as error:  # of a notebook or an interpreter: nobody else can import it
        raise _unspeakable(error) from None
    welcome(things)
    found: Task = task
    return found


def _unspeakable(error: Exception) -> RequestError:
    return RequestError(
        f"a method or a part of yours cannot be given to another process: {error}. Define it at the top of a module "
        "that can be imported, or do with one process"
    )


def _pass_over(number: int, frame: object) -> None:
    """SIGTERM does nothing. Were it ignored or blocked, the processes that a source starts here would inherit that,
    and a pool of theirs, which ends with SIGTERM, would never end."""


def serve(pipe: Connection, stopping: Any, count: int) -> None:
    """What such a process, one of so many, does until it is dismissed or whoever asks it has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and SIGTERM are heard where the runs are dealt
    signal.signal(signal.SIGTERM, _pass_over)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # as we began; see `_pass_over`
    process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # a source may use processes, too
    Batched.company = count
    made = partial(data_of, shelf=Shelf())

    def say(*words: Any) -> None:
        pipe.send_bytes(pickle.dumps(words))  # not pipe.send, which would share the memory of tensors

    def post(letter: Letter) -> None:
        try:
            say(letter, None)
        except OSError:  # nobody listens: the runs end with a checkpoint
            stopping.value = True

    answer: Any = (os.getpid(),)
    while True:
        try:
            say(None, answer)
            written = pipe.recv_bytes()
        except (EOFError, OSError):  # nobody listens any more
            return
        try:
            task = _read(written)
            answer = do(task, partial(_here, count), made, post, lambda: bool(stopping.value))
        except Unsound as error:
            sys.exit(f"{error}; another process goes on")
        except Exception as error:  # not of a run: of what surrounds it
            answer = portable(error)


def _here(count: int, config: Config) -> Config:
    """On CPU the processes share the cores."""
    if config.run.workers or device_of(config.run).type != "cpu":
        return config
    workers = max((os.cpu_count() or 1) // count, 1)
    return config.model_copy(update={"run": config.run.model_copy(update={"workers": workers})})
