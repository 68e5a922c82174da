"""Processes that do whole runs: what is asked of them, what they do, and how they tell of it.

The orchestrator deals runs and knows a `Crew` of processes, of this machine or of a cluster (`hire.py` gets one)."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from torso.config import Config
from torso.data import Federation
from torso.errors import TorsoError
from torso.parallel.packs import After, PlannedRun, side_by_side
from torso.results.result import Result
from torso.runs.events import Begin, Listener, Stop
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
        """The calls that are answered; waits up to `seconds` for the first."""

    def answer(self, call: Any) -> list[Result | Exception]:
        """What came of a call that is answered. Raises Lost, and what went wrong beside the runs themselves."""

    def parcel(self, federation: Federation) -> Any:
        """Data as a task takes them along; None where processes read their own."""

    def letters(self, stop: bool) -> Iterable[Letter]:
        """What the runs have told since; `stop`: they are to end with a checkpoint."""

    def dismiss(self, hand: Any) -> None: ...

    def close(self) -> None:
        """Dismiss the idle ones, and whatever is there for them."""

    def late(self) -> str:
        """Why none has started, in words."""


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
