"""Whole runs in processes of this machine: while one is on the host, the kernels of another fill the accelerator."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Any

from torso.config import Config
from torso.data import Shelf, build
from torso.errors import RequestError
from torso.registry import guests, welcome
from torso.runs.hands import Letter, Lost, Task, do, portable
from torso.runs.result import Result
from torso.runs.run import device_of

_PATIENCE = 20.0  # seconds in which an idle process has to end


@dataclass(eq=False)
class Hand:
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
        self.idle: list[Hand] = []
        self.context = get_context("spawn")  # a fork of a process with CUDA or with threads is none
        self.stopping = self.context.Event()
        self.heard: list[Letter] = []

    def room(self) -> int:
        return self.count

    def hire(self) -> tuple[Hand, Hand]:
        ours, theirs = self.context.Pipe()
        words = (theirs, self.stopping, max((os.cpu_count() or 1) // self.count, 1))
        process = self.context.Process(target=serve, args=words, daemon=True)
        with _deaf():
            process.start()
        theirs.close()
        hand = Hand(process, ours)
        return hand, hand

    def ask(self, hand: Hand, task: Task) -> Hand:
        hand.said = None
        try:
            hand.pipe.send_bytes(_written(task))
        except OSError:  # it has died while it was idle
            hand.pipe.close()
        return hand

    def first(self, calls: Sequence[Hand], seconds: float) -> Sequence[Hand]:
        alive = {hand.pipe: hand for hand in calls if not hand.gone}
        for pipe in connection.wait(list(alive), seconds if len(alive) == len(calls) else 0.0):
            self._read(alive[pipe])  # type: ignore[index]  # it is given what we gave
        return [hand for hand in calls if hand.gone or hand.said is not None]

    def _read(self, hand: Hand) -> None:
        """What lies in the pipe: letters, until an answer comes."""
        try:
            while hand.said is None and hand.pipe.poll():
                letter, hand.said = pickle.loads(hand.pipe.recv_bytes())  # of a process that we have started
                if letter is not None:
                    self.heard.append(letter)
        except (EOFError, OSError):
            hand.pipe.close()

    def answer(self, call: Hand) -> list[Result | Exception]:
        if call.said is None:
            call.process.join(_PATIENCE)
            raise Lost(f"process {call.process.pid} ended with status {call.process.exitcode}")
        if isinstance(call.said, Exception):
            raise call.said
        found: list[Result | Exception] = call.said
        return found

    def letters(self, stop: bool) -> Iterable[Letter]:
        if stop:
            self.stopping.set()
        else:
            self.stopping.clear()
        letters, self.heard = self.heard, []
        return letters

    def dismiss(self, hand: Hand) -> None:
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
    """What starts here never hears Ctrl-C, also before it can say so; we hear it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _written(task: Task) -> bytes:
    """With what the user has registered, by the names of its modules: the other process imports them."""
    try:
        return pickle.dumps((guests(), task))
    except Exception as error:  # whatever objects of others raise
        raise RequestError(
            f"what is registered from outside cannot be given to another process: {error}. Define it at the top of a "
            "module that can be imported, or do with one process"
        ) from None


def serve(pipe: Connection, stopping: Event, workers: int) -> None:
    """What such a process does, until it is dismissed or whoever asks it has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is heard where the runs are dealt
    shelf = Shelf()

    def made(config: Config) -> Any:
        return build(config.data, config.run.seed, device_of(config.run), shelf)

    def post(letter: Letter) -> bool:
        say(letter, None)
        return stopping.is_set()

    def say(*words: Any) -> None:
        pipe.send_bytes(pickle.dumps(words))  # not pipe.send, which would share the memory of tensors

    here: Callable[[Config], Config] = partial(_here, workers=workers)
    answer: Any = (os.getpid(),)
    while True:
        try:
            say(None, answer)
            written = pipe.recv_bytes()
        except (EOFError, OSError):  # nobody listens any more
            return
        try:
            things, task = pickle.loads(written)  # of the process that has started this one
            welcome(things)
            answer = do(task, here, made, post)
        except Exception as error:  # not of a run: of what surrounds it
            answer = portable(error)


def _here(config: Config, workers: int) -> Config:
    """On CPU the processes share the cores."""
    if config.run.workers:
        return config
    return config.model_copy(update={"run": config.run.model_copy(update={"workers": workers})})
