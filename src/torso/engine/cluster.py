"""The Ray engine: it divides the clients of a piece of work over worker processes, on one machine or many.

Each worker has an ordinary engine (batched on an accelerator, threads on CPU). What clients send comes back client by
client, so sums do not depend on the number of workers. What clients keep stays in Ray's object store. Work is a pure
function of its clients, so another worker can do the share of a worker that dies, and nothing is counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeVar

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from torso.data import Federation
from torso.engine.base import HasCosts, S, SupportsForClients, Work
from torso.engine.connect import threads, why_worker_is_late, worker_count, worker_resources
from torso.engine.dealing import split_by_cost, split_evenly
from torso.engine.payloads import (
    CacheRecord,
    Label,
    PackedTensors,
    Payload,
    TensorLabels,
    complete_payload,
    read,
    write,
)
from torso.engine.ray_session import Session
from torso.engine.state_handles import LARGE, LeavesStates, state_handles, with_state_indices
from torso.engine.worker import DriverEnvironment, Worker
from torso.errors import NoWorkerLeft, RequestError, TorsoError
from torso.nets import Network, skeleton
from torso.personal.store import Store

if TYPE_CHECKING:
    from torso.config import RunConfig

T = TypeVar("T")
R = TypeVar("R")
_TRIES = 3  # workers that may die over one share; after that the share itself is taken to be the cause


@dataclass
class WorkerHandle:
    """The driver's handle on one worker. `actor` and `cache_record` are new after the worker's process was replaced."""

    slot: int  # the worker's index, from 0
    actor: Any  # Ray's handle on the process
    cache_record: CacheRecord  # the tensors that the process holds
    who: str = ""  # name for messages: number, process id and host


@dataclass(frozen=True)
class PendingShare:
    """A share that a worker was asked to do: its clients, the process that was asked, and where the answer will be."""

    clients: Sequence[int]
    store: Store | None
    worker: WorkerHandle
    actor: Any  # the process that was asked; `worker.actor` is another one if it was replaced since …
    cache_record: CacheRecord  # … and so is `worker.cache_record`
    answer: Any  # an ObjectRef of a Payload
    left: Sequence[Any]  # ObjectRefs of the states that the share leaves its clients
    ticket: int = 0  # key under which the worker keeps the results until they are added up; 0: they come back


class Cluster:
    """An engine over Ray actors. `session`: a connection to Ray that was made for this run and ends with it."""

    def __init__(self, net: Network, federation: Federation, run: RunConfig, session: Session | None = None) -> None:
        self.federation = federation
        self.run = run
        self.session = session
        self.held = {"federation": federation, "net": net, "engine": self}  # workers hold their own: never sent
        self.net = net
        self.count = worker_count(run)
        self.tensor_labels = TensorLabels()
        self.workers: list[WorkerHandle] = []
        self.device = federation.device
        # three totals for benchmarks: bytes sent, bytes received, seconds in which the driver waited for workers
        self.bytes_out = self.bytes_in = 0
        self.waited = 0.0
        self._started = 0  # processes that were started so far, replacements included
        self._tickets = count(1)
        self._state_bytes = 0  # size of the largest client state so far
        self._notes: list[str] = []  # messages about lost workers, for `repaired`
        self._worker_args: tuple[Any, ...] = ()  # what every Worker is built from

    def __enter__(self) -> Self:
        worker_run = self.run.model_copy(update={"workers": threads(self.run)})
        device = "cuda" if self.run.ray.gpus_per_worker else "cpu"
        net = cloudpickle.dumps(skeleton(self.net))
        self._worker_args = (
            DriverEnvironment.here(),
            net,
            ray.put(complete_payload(self.federation)),
            worker_run,
            device,
        )
        try:
            self.workers = [self._start(slot) for slot in range(self.count)]
            for worker in self.workers:
                why = self._wait_for_start(worker)
                if why:
                    raise RequestError(f"run.ray.workers = {self.count}: worker {worker.slot + 1} {why}")
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:
            ray.kill(worker.actor)
        self.workers = []
        self._worker_args = ()
        if self.session:
            self.session.__exit__(*exc)

    def set_exit_message(self, how: str) -> None:
        if self.session:
            self.session.set_exit_message(how)

    def repaired(self) -> tuple[str, ...]:
        notes, self._notes = self._notes, []
        return tuple(notes)

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """Results share by share, in the order of the clients. All shares are sent before the first is waited for."""
        calls = self._send(work, self._shares(work, clients), store)
        while calls:
            yield from self._answer(work, calls.pop(0))

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S:
        """Pass the sum from worker to worker in the order of the clients; each adds the results of its share."""
        for call in self._send(work, self._shares(work, clients), store, keep=True):
            total = self._added(work, call, total)
        return total

    def _added(self, work: Work[Any], call: PendingShare, total: S) -> S:
        """The sum with the results of a share. If its worker has died, another one does the share again."""
        for _ in range(_TRIES):
            done = self._fetch(call.answer)
            if done is not None:
                _, size = read(done.text, self.held, {})
                self._state_bytes = max(self._state_bytes, size)
                payload = complete_payload(total, self.held)
                self.bytes_out += payload.size
                found = self._fetch(call.actor.add_up.remote(call.ticket, payload))
                if found is not None:
                    added: S = read(found.text, self.held, found.packed.unload(self.device))
                    return self._with_handles(added, call)
            (call,) = self._send(work, [(self._replacement(call), call.clients)], call.store, keep=True)
        raise _killed_too_many(call)

    def _shares(self, work: Work[T], clients: Sequence[int]) -> list[tuple[WorkerHandle, Sequence[int]]]:
        """The workers that get clients, each with its stretch of them."""
        if isinstance(work, HasCosts):
            dealt = split_by_cost(clients, work.costs(self.federation.roster, clients), len(self.workers))
        else:
            dealt = split_evenly(clients, len(self.workers))
        return [(worker, share) for worker, share in zip(self.workers, dealt, strict=True) if share]

    def _send(
        self,
        work: Work[T],
        shares: Sequence[tuple[WorkerHandle, Sequence[int]]],
        store: Store | None = None,
        keep: bool = False,
    ) -> list[PendingShare]:
        """Ask workers to do shares of work.

        Tensors that all of these workers lack go into Ray's object store once, the others to each worker that lacks
        them. `keep`: the workers keep the results until they are added up."""
        written = []
        for worker, clients in shares:
            mine = work.for_clients(clients) if isinstance(work, SupportsForClients) else work
            travelling, handles = with_state_indices(store, clients)
            text, named = write((mine, clients, travelling), self.held, self.tensor_labels.label)
            lacks = named.keys() - worker.cache_record.holds
            written.append((worker, clients, handles, text, named, lacks))
        shared: set[Label] = set()
        if len(written) > 1:
            shared = set.intersection(*(lacks for *_, lacks in written))
        tensors = {}
        if written:
            named_by_first = written[0][4]
            tensors = {label: tensor for label, tensor in named_by_first.items() if label in shared}
        common = PackedTensors.of(tensors)
        common_ref = ray.put(common) if tensors else common
        self.bytes_out += common.data.nbytes
        calls = []
        for worker, clients, handles, text, named, lacks in written:
            own = PackedTensors.of({label: named[label] for label in named if label in lacks and label not in shared})
            payload = Payload(text, own, worker.cache_record.take_dropped())
            self.bytes_out += payload.size
            worker.cache_record.holds |= lacks
            into = self._state_objects(work, len(clients))
            ticket = next(self._tickets) if keep else 0
            refs = worker.actor.do.options(num_returns=1 + into).remote(payload, common_ref, handles, into, ticket)
            answer, *left = refs if into else [refs]  # Ray returns a list only if there are several
            calls.append(PendingShare(clients, store, worker, worker.actor, worker.cache_record, answer, left, ticket))
        return calls

    def _state_objects(self, work: Work[T], clients: int) -> int:
        """The number of objects in which a share leaves its clients' states; 0 if the work leaves them nothing."""
        if not isinstance(work, LeavesStates):
            return 0
        return clients if self._state_bytes >= LARGE else 1

    def _answer(self, work: Work[T], call: PendingShare) -> list[T]:
        """The results of a share. If its worker has died, another one does the share again."""
        for _ in range(_TRIES):
            payload = self._fetch(call.answer)
            if payload is not None:
                tensors = payload.packed.unload(self.device)
                for label, tensor in tensors.items():
                    call.cache_record.holds.add(self.tensor_labels.enter(tensor, label))
                results, size = read(payload.text, self.held, tensors)
                self._state_bytes = max(self._state_bytes, size)
                return [self._with_handles(result, call) for result in results]
            (call,) = self._send(work, [(self._replacement(call), call.clients)], call.store)
        raise _killed_too_many(call)

    def _fetch(self, answer: Any) -> Payload | None:
        """A worker's answer, or None if the worker has died. Raises what the work itself has raised."""
        began = time.perf_counter()
        try:
            ray.wait([answer], fetch_local=False)
            self.waited += time.perf_counter() - began
            payload: Payload = ray.get(answer)
        except RayTaskError as error:
            if isinstance(error.cause, TorsoError):
                raise error.cause from None
            raise
        except (RayActorError, ObjectLostError, OutOfMemoryError):
            return None
        self.bytes_in += payload.size
        return payload

    def _with_handles(self, result: R, call: PendingShare) -> R:
        """A result with handles in place of the states that its share left in the object store."""
        if not call.left:
            return result
        handles = state_handles(call.left, call.clients)
        left = vars(result)["left"]
        vars(result)["left"] = {k: handles[k] if k in handles and state is None else state for k, state in left.items()}
        return result

    def _replacement(self, call: PendingShare) -> WorkerHandle:
        """The worker that does a share again after its worker has died: a new one, or one of the remaining ones."""
        worker = call.worker
        if worker.cache_record is not call.cache_record:  # replaced since
            return worker
        lost = f"{worker.who} was lost with a share of {len(call.clients)} clients"
        if worker not in self.workers:  # lost with another share, and not replaced
            return self._remaining(worker, lost)
        ray.kill(worker.actor)
        self.tensor_labels.cache_records.remove(worker.cache_record)
        new = self._start(worker.slot)
        why = self._wait_for_start(new)
        if not why:
            worker.actor = new.actor
            worker.cache_record = new.cache_record
            worker.who = new.who
            self._notes.append(f"{lost}; {worker.who} took its place and did it again")
            return worker
        ray.kill(new.actor)
        self.tensor_labels.cache_records.remove(new.cache_record)
        self.workers.remove(worker)
        if not self.workers:
            raise NoWorkerLeft(f"{lost}, no worker is left, and another {why}")
        return self._remaining(worker, lost)

    def _remaining(self, lost_worker: WorkerHandle, lost: str) -> WorkerHandle:
        """One of the remaining workers. `lost`: the message about the lost one."""
        remaining = self.workers[lost_worker.slot % len(self.workers)]
        self._notes.append(f"{lost}; there was none to take its place, and {remaining.who} did it again")
        return remaining

    def _start(self, slot: int) -> WorkerHandle:
        """Start a worker process, without waiting for it."""
        self._started += 1
        cache_record = CacheRecord()
        self.tensor_labels.cache_records.append(cache_record)
        remote_class = ray.remote(Worker).options(**worker_resources(self.run), max_restarts=0)
        return WorkerHandle(slot, remote_class.remote(self._started, *self._worker_args), cache_record)

    def _wait_for_start(self, worker: WorkerHandle) -> str:
        """Wait until a worker has started. Returns why it has not, or an empty string."""
        try:
            pid, host = ray.get(worker.actor.hello.remote(), timeout=self.run.ray.wait)
        except GetTimeoutError:
            return why_worker_is_late(self.run)
        except RayActorError as error:
            return f"could not start: {str(error).strip().splitlines()[-1]}"
        worker.who = f"worker {worker.slot + 1} (process {pid} on {host})"
        return ""


def _killed_too_many(call: PendingShare) -> NoWorkerLeft:
    return NoWorkerLeft(
        f"{_TRIES} workers have died over the same {len(call.clients)} clients, {call.clients[0]} among them. The "
        "clients themselves seem to be the cause: their memory may run out, for example. Ray's logs tell more"
    )
