"""Independent runs beside each other on a cluster: each is one task with an ordinary engine, and tells how it goes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayTaskError, WorkerCrashedError

from torso.config import Config
from torso.data import Federation
from torso.engine.connect import needs, room, threads
from torso.engine.parcels import Parcel, read, whole
from torso.engine.worker import Home
from torso.errors import PlaceLost, RequestError, TorsoError
from torso.runs.events import Begin, Listener, Stop
from torso.runs.result import Result
from torso.runs.rounds import Round
from torso.runs.run import Stopped, run

_TRIES = 3  # processes that one run may cost
_LOOK = 0.2  # seconds between looks at the mailbox


@dataclass(frozen=True)
class Plan:
    """One of several runs."""

    config: Config
    folder: Path | None
    resume: bool


class Mailbox:
    """Where the runs leave word, and learn whether they are to stop."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, str, tuple[Any, ...]]] = []
        self.asked = False

    def post(self, number: int, hook: str, words: tuple[Any, ...]) -> bool:
        self.letters.append((number, hook, words))
        return self.asked

    def take(self, ask: bool) -> list[tuple[int, str, tuple[Any, ...]]]:
        self.asked = self.asked or ask
        letters, self.letters = self.letters, []
        return letters


class Away(Listener):
    """Passes on what a run tells, from where it runs; the answer says whether it is to stop."""

    def __init__(self, number: int, mailbox: Any, stop: Stop) -> None:
        self.number, self.mailbox, self.stop = number, mailbox, stop

    def _post(self, hook: str, *words: Any) -> None:
        if ray.get(self.mailbox.post.remote(self.number, hook, words)):
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
    return replace(result, initial=None, generic={}, state=None, federation=None)


def one_run(number: int, home: Home, plan: bytes, data: Parcel, mailbox: Any) -> Result:
    """A task: the run as it would be in this process alone."""
    home.move_in()
    chosen: Plan = cloudpickle.loads(plan)
    if chosen.folder is not None and not chosen.folder.parent.is_dir():
        raise RequestError(
            f"--out {str(chosen.folder.parent)!r} is not there on {socket.gethostname()}, a machine of the cluster. "
            "Give a folder on a disk that all of them share"
        )
    device = torch.device("cuda" if chosen.config.run.ray.gpus_per_worker else "cpu")
    federation: Federation = read(data.text, {}, data.cargo.unload(device, copy=False))
    stop = Stop()
    listener = Away(number, mailbox, stop)
    here = {"engine": "auto", "device": device.type, "workers": threads(chosen.config.run)}
    config = chosen.config.model_copy(update={"run": chosen.config.run.model_copy(update=here)})
    found = run(config, chosen.folder, resume=chosen.resume, listener=listener, stop=stop, federation=federation)
    return light(found)


class Spread:
    """The runs under way and those that wait."""

    def __init__(
        self, plans: Sequence[Plan], data: Callable[[Config], Federation], listener: Listener, stop: Stop
    ) -> None:
        self.plans, self.data, self.stop = list(plans), data, stop
        self.listeners = [listener.beside() for _ in plans]
        self.home = Home.here()
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0).remote()
        self.results: dict[int, Result] = {}
        self.stopped: dict[int, str] = {}
        self.tries = [0] * len(self.plans)
        self.parcels: dict[int, Any] = {}  # data by seed, in the object store
        self.flying: dict[Any, int] = {}

    def go(self) -> list[Result]:
        first = self.plans[0].config.run
        waiting, most = list(range(len(self.plans)))[::-1], room(first)
        try:
            while self.flying or (waiting and not self.stop.asked):
                while waiting and len(self.flying) < most and not self.stop.asked:
                    self._start(waiting.pop())
                done, _ = ray.wait(list(self.flying), timeout=_LOOK)
                self._hear()
                for answer in done:
                    self._land(answer, self.flying.pop(answer))
            self._hear()
        finally:
            for answer in self.flying:
                ray.cancel(answer, force=True)
            ray.kill(self.mailbox)
        if self.stopped or waiting:
            left = f"{len(self.plans) - len(self.results)} of {len(self.plans)} runs are not finished"
            raise Stopped("; ".join([left, *self.stopped.values()]))
        return [self.results[number] for number in range(len(self.plans))]

    def _start(self, number: int) -> None:
        plan = self.plans[number]
        seed = plan.config.run.seed
        if plan.folder is not None:
            plan.folder.parent.mkdir(parents=True, exist_ok=True)
        if seed not in self.parcels:
            self.parcels[seed] = ray.put(whole(self.data(plan.config)))
        task = ray.remote(one_run).options(**needs(plan.config.run), max_retries=0)
        self.tries[number] += 1
        answer = task.remote(number, self.home, cloudpickle.dumps(plan), self.parcels[seed], self.mailbox)
        self.flying[answer] = number

    def _hear(self) -> None:
        for number, hook, words in ray.get(self.mailbox.take.remote(self.stop.asked)):
            getattr(self.listeners[number], hook)(*words)

    def _land(self, answer: Any, number: int) -> None:
        """Keep a run's result; a run whose process has died goes on in another, from its last checkpoint."""
        plan = self.plans[number]
        try:
            self.results[number] = ray.get(answer)
        except RayTaskError as error:
            if isinstance(error.cause, Stopped):
                self.stopped[number] = f"{plan.config.method.name} seed {plan.config.run.seed}: {error.cause}"
            elif isinstance(error.cause, TorsoError):
                raise error.cause from None
            else:
                raise
        except (WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError):
            what = f"{plan.config.method.name} seed {plan.config.run.seed}"
            if self.tries[number] >= _TRIES:
                raise PlaceLost(f"{_TRIES} processes have died over {what}; Ray's logs tell more") from None
            begun = plan.folder is not None and (plan.folder / "config.toml").exists()
            self.plans[number] = replace(plan, resume=begun)
            self.listeners[number].note(f"the process of {what} was lost; it goes on in another")
            self._start(number)


def spread(
    plans: Sequence[Plan], data: Callable[[Config], Federation], listener: Listener | None, stop: Stop | None
) -> list[Result]:
    """All runs, as many at once as `run.ray` has room for; `data` makes those of a seed, once."""
    return Spread(plans, data, listener or Listener(), stop or Stop()).go()
