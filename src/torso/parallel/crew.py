"""Processes that do whole runs: what is asked of them, what they do, and how they tell of it.

`Spread` deals runs and knows a `Crew` of processes, of this machine (`processes.py`) or of a cluster (`away.py`)."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from torso.config import Config, RunConfig
from torso.data import Federation
from torso.engine.connect import connected
from torso.errors import RequestError, TorsoError
from torso.parallel.packs import After, PlannedRun, side_by_side
from torso.results.result import Result
from torso.runs.events import Begin, Listener, Stop
from torso.runs.job import device_of
from torso.runs.rounds import Round

Letter = tuple[int, str, tuple[Any, ...]]  # from which run, what of a Listener is to be called, with what
Post = Callable[[Letter], None]  # leaves word


@dataclass(frozen=True)
class Task:
    """A pack of runs, and their numbers among all; `parcel`: their data, where those are sent."""

    numbers: Sequence[int]
    plans: Sequence[PlannedRun]
    after: After | None = None
    parcel: Any = None


_MOST = 4  # processes, with which an H200 was busy all the time (bench/README.md)
_ROOM = 20 * 2**30  # bytes of a device for each: a hundred clients of mobilenet take 11 GiB


class Lost(Exception):
    """A process has died, or could not start; the words say what is known of why."""


class Unsound(Exception):
    """The accelerator does nothing more in this process: another has to go on."""


class Crew(Protocol):
    """Processes that do one task after the other; those that are idle keep their data, and what they have compiled.

    A call is an answer to come: the first word of a process that starts, or what came of a task."""

    idle: list[Any]
    wait: float  # seconds in which one has to start

    def room(self) -> int:
        """How many of them there may be."""

    def hire(self) -> tuple[Any, Any]:
        """A process that begins to start, and the call that is answered once it has."""

    def ask(self, hand: Any, task: Task) -> Any:
        """Give an idle one a task: the call. Raises Lost where it has died meanwhile."""

    def first(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Those that are answered; waits so long for one."""

    def answer(self, call: Any) -> list[Result | Exception]:
        """What came of a call that is answered. Raises Lost, and what went wrong beside the runs themselves."""

    def letters(self, stop: bool) -> Iterable[Letter]:
        """What the runs have told since; `stop`: they are to end with a checkpoint."""

    def dismiss(self, hand: Any) -> None: ...

    def close(self) -> None:
        """Dismiss the idle ones, and whatever is there for them."""

    def late(self) -> str:
        """Why none has started, in words."""


def filling(run: RunConfig) -> int:
    """How many processes keep the device busy, each with room of its own; on CPU, and on a cluster, it is this one."""
    if run.engine == "ray" or (device := device_of(run)).type != "cuda":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(min(_MOST, (os.cpu_count() or 1) // 2, memory // _ROOM), 1)


@contextmanager
def crew(run: RunConfig, processes: int = 1) -> Iterator[Crew | None]:
    """Processes for all calls of `run_together` in the block, where runs take place in others than this one."""
    with ExitStack() as stack:
        hands: Crew | None = None
        if run.engine == "ray":
            if processes > 1:
                raise RequestError(
                    f"--processes {processes} and run.engine = 'ray': a cluster deals runs over its own workers. Give "
                    "one of them; run.ray.workers says how many"
                )
            stack.enter_context(connected(run))
            from torso.parallel.ray_crew import OnRay  # needs Ray

            hands = stack.enter_context(closing(OnRay(run)))
        elif processes > 1:
            from torso.parallel.processes import Processes

            hands = stack.enter_context(closing(Processes(processes)))
        yield hands


class RemoteListener(Listener):
    """Passes on what a run tells, from where it runs."""

    def __init__(self, number: int, post: Post) -> None:
        self.number, self.post = number, post

    def _post(self, hook: str, *words: Any) -> None:
        self.post((self.number, hook, words))

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


class RemoteStop(Stop):
    """`look` says whether whoever deals the runs wants them to end."""

    def __init__(self, look: Callable[[], bool]) -> None:
        super().__init__()
        self.look = look

    @property
    def asked(self) -> bool:
        return self._asked or self.look()


def do(
    task: Task,
    here: Callable[[Config], Config],
    made: Callable[[Config], Federation],
    post: Post,
    look: Callable[[], bool],
) -> list[Result | Exception]:
    """Each run as it would be in this process alone; `here`: its config in this process, `made` gives its data."""
    plans = [replace(plan, config=here(plan.config)) for plan in task.plans]
    listeners = [RemoteListener(number, post) for number in task.numbers]
    ends = side_by_side(plans, listeners, RemoteStop(look), made, task.after)
    told = [portable(end) if isinstance(end, Exception) else light(end) for end in ends]
    del ends  # models and tracebacks
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # others may share the accelerator
        except RuntimeError as error:  # an illegal access, of a neighbour under MPS maybe: it stays until the end
            raise Unsound(str(error)) from None
    return told


def light(result: Result) -> Result:
    """What can be said of a run that took place elsewhere: its models stay in its folder."""
    return replace(result, models=None)


def portable(error: Exception) -> Exception:
    """An error that survives the way; what nobody has foreseen says where it came from, since tracebacks do not."""
    if not isinstance(error, TorsoError) and not hasattr(error, "__notes__"):
        error.add_note(f"On {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))  # which holds no frames, and so no tensors
    except Exception:  # whatever its author has thought of
        return RuntimeError(f"{type(error).__name__}: {error}")
    return copy
