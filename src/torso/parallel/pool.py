"""The interface of a pool of processes that do whole runs, and what such a process does.

The orchestrator divides runs over a `ProcessPool`, on this machine or on a cluster (`hire.py` makes it)."""

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
from torso.engine.batched import free_memory
from torso.errors import TorsoError
from torso.parallel.packs import AfterRun, PlannedRun, side_by_side
from torso.results.result import Result
from torso.runs.events import Begin, Listener, Stop
from torso.runs.rounds import Round

ListenerCall = tuple[int, str, tuple[Any, ...]]  # the run's number, the Listener method to call, its arguments
Post = Callable[[ListenerCall], None]  # sends one to the orchestrator's process


@dataclass(frozen=True)
class Task:
    """A pack of runs for one process."""

    numbers: Sequence[int]  # of these runs among all runs
    plans: Sequence[PlannedRun]
    after: AfterRun | None = None
    payload: Any = None  # the runs' data, if they are sent
    company: int = 1  # processes that work at the same time; on an accelerator, each may use its part of the memory


class ProcessLost(Exception):
    """A process has died, or could not start. The message says why, as far as that is known."""


class AcceleratorBroken(Exception):
    """The accelerator is broken for this process: another process has to continue its runs."""


class ProcessPool(Protocol):
    """A pool of processes, each of which does one task at a time.

    Idle processes stay, with the data they have read and the kernels they have compiled. A call (the type is the
    pool's own) stands for an answer that will come: that a process has started, or the results of a task."""

    idle: list[Any]  # processes without a task
    wait: float  # seconds that a process may take to start

    def capacity(self) -> int:
        """The largest number of processes."""

    def start(self) -> tuple[Any, Any]:
        """Start a process, without waiting for it. Returns it, and a call that is answered once it has started."""

    def submit(self, worker: Any, task: Task) -> Any:
        """Give a task to an idle process. Returns the call. Raises ProcessLost if the process has died."""

    def finished(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
        """The calls that are answered. Waits up to `seconds` for the first."""

    def answer(self, call: Any) -> list[Result | Exception]:
        """The answer to a finished call. Raises ProcessLost, or an error that came from outside the runs."""

    def payload(self, federation: Federation) -> Any:
        """A federation's data in the form in which a task carries them; None if processes read data themselves."""

    def listener_calls(self, stop: bool) -> Iterable[ListenerCall]:
        """What the runs have reported since the last call. `stop`: tell the runs to end with a checkpoint."""

    def kill(self, worker: Any) -> None: ...

    def close(self) -> None:
        """End the idle processes and free everything that belongs to the pool."""

    def why_late(self) -> str:
        """Why no process has started in time (the end of a sentence)."""


class RemoteListener(Listener):
    """Passes what a run reports on to the orchestrator's process."""

    def __init__(self, number: int, post: Post) -> None:
        self.number, self.post = number, post

    def _post(self, hook: str, *arguments: Any) -> None:
        self.post((self.number, hook, arguments))

    def begin(self, begin: Begin) -> None:
        self._post("begin", begin)

    def round(self, round: Round, seconds: float, accuracy: Any) -> None:
        self._post("round", round, seconds, accuracy)

    def note(self, text: str) -> None:
        self._post("note", text)

    def measuring(self, clients: int) -> None:
        self._post("measuring", clients)

    def end(self, result: Result) -> None:
        self._post("end", without_models(result))


class RemoteStop(Stop):
    """A stop that can be asked for in the orchestrator's process; `look` says whether it was."""

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
    """Do the runs of a task in this process. Each gives the result that it gives alone.

    `here` adapts a run's config to this process, `made` gives its data."""
    plans = [replace(plan, config=here(plan.config)) for plan in task.plans]
    listeners = [RemoteListener(number, post) for number in task.numbers]
    ends = side_by_side(plans, listeners, RemoteStop(look), made, task.after)
    told = [picklable_error(end) if isinstance(end, Exception) else without_models(end) for end in ends]
    del ends  # frees models and tracebacks
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        try:
            torch.cuda.synchronize()
            free_memory()  # other processes may share the accelerator
        except RuntimeError as error:  # an illegal access, maybe of another process under MPS: CUDA does not recover
            raise AcceleratorBroken(str(error)) from None
    return told


def without_models(result: Result) -> Result:
    """A result without its models, which stay in the run's folder."""
    return replace(result, models=None)


def picklable_error(error: Exception) -> Exception:
    """A copy of an error that can be sent to another process. An unexpected error gets its traceback as a note."""
    if not isinstance(error, TorsoError) and not hasattr(error, "__notes__"):
        error.add_note(f"On {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))  # it holds no frames, and so no tensors
    except Exception:  # an exception class of the user can fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return copy
