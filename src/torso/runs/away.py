"""Runs in a process of the cluster: how they tell what they do, and what comes back of them."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torso.config import Config
from torso.data import Federation, Shelf, build
from torso.engine.connect import threads
from torso.engine.parcels import Parcel, read
from torso.engine.worker import Home
from torso.errors import RequestError, TorsoError
from torso.runs.events import Begin, Listener, Stop
from torso.runs.result import Result
from torso.runs.rounds import Round
from torso.runs.run import device_of
from torso.runs.together import After, Plan, side_by_side

Letter = tuple[int, str, tuple[Any, ...]]  # from which run, what of a Listener is to be called, with what


def mailbox() -> Any:
    """An actor where the runs leave word, and learn whether they are to stop; on the machine of whoever asks for it.

    It is made here and the letters are closed, so that its process does without Torso, which takes seconds to load."""

    class Mailbox:
        def __init__(self) -> None:
            self.letters: list[bytes] = []
            self.asked = False

        def post(self, letter: bytes) -> bool:
            self.letters.append(letter)
            return self.asked

        def take(self, ask: bool) -> list[bytes]:
            self.asked = self.asked or ask
            letters, self.letters = self.letters, []
            return letters

    with_us = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=with_us).remote()


class Away(Listener):
    """Passes on what a run tells, from where it runs; the answer says whether it is to stop."""

    def __init__(self, number: int, mailbox: Any, stop: Stop) -> None:
        self.number, self.mailbox, self.stop = number, mailbox, stop

    def _post(self, hook: str, *words: Any) -> None:
        letter: Letter = self.number, hook, words
        if ray.get(self.mailbox.post.remote(cloudpickle.dumps(letter))):
            self.stop.ask()

    def begin(self, begin: Begin) -> None:
        self._post("begin", begin)

    def round(self, round: Round, seconds: float, accuracy: Any) -> None:
        self._post("round", round, seconds, accuracy)

    def note(self, text: str) -> None:
        self._post("note", text)

    def measuring(self, clients: int) -> None:
        self._post("measuring", clients)

    def end(self, result: Result) -> None:
        self._post("end", light(result))


def light(result: Result) -> Result:
    """What can be said of a run that took place elsewhere: its models stay in its folder."""
    return replace(result, job=None, state=None)


def portable(error: Exception) -> Exception:
    """An error that survives the way; what nobody has foreseen says where it came from, since tracebacks do not."""
    if not isinstance(error, TorsoError) and not hasattr(error, "__notes__"):
        error.add_note(f"On {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # whatever its author has thought of
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error.with_traceback(None)


class Hand:
    """A process that does one pack of runs after the other, and reads each data set once."""

    def __init__(self) -> None:
        self.shelf = Shelf()

    def hello(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def do(
        self, home: Home, numbers: Sequence[int], load: bytes, parcel: Parcel | None, mailbox: Any
    ) -> list[Result | Exception]:
        """Each run as it would be in this process alone, with an ordinary engine; `parcel`: their data, if sent."""
        home.move_in()
        ends = self._ends(numbers, *unload(load), parcel, mailbox)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # others may share the accelerator
        return ends

    def _ends(
        self, numbers: Sequence[int], plans: Sequence[Plan], after: After | None, parcel: Parcel | None, mailbox: Any
    ) -> list[Result | Exception]:
        for plan in plans:
            if plan.folder is not None and not plan.folder.parent.is_dir():
                return [_elsewhere("--out", plan.folder.parent)] * len(plans)
        here, stop = [replace(plan, config=_here(plan.config)) for plan in plans], Stop()
        made = self._read if parcel is None else partial(_sent, parcel)
        listeners = [Away(number, mailbox, stop) for number in numbers]
        ends = side_by_side(here, listeners, stop, made, after)
        return [portable(end) if isinstance(end, Exception) else light(end) for end in ends]

    def _read(self, config: Config) -> Federation:
        if config.data.root and not Path(config.data.root).exists():
            raise _elsewhere("data.root =", Path(config.data.root))
        return build(config.data, config.run.seed, device_of(config.run), self.shelf)


def _sent(parcel: Parcel, config: Config) -> Federation:
    federation: Federation = read(parcel.text, {}, parcel.cargo.unload(device_of(config.run), copy=False))
    return federation


def unload(load: bytes) -> tuple[Sequence[Plan], After | None]:
    plans, after = cloudpickle.loads(load)
    return plans, after


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
