"""Ray: the clients of a piece of work are dealt over processes, on one machine or many.

Each of them has an ordinary engine (batched on an accelerator, threads on CPU). What clients send comes back client by
client, so that sums do not depend on the number of workers; what they keep stays in the object store. Work is a pure
function of its clients, so the share of a worker that dies is done again by another, and nothing is counted twice.
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
from torso.engine.base import Narrows, S, Weighs, Work
from torso.engine.connect import late, needs, room, threads
from torso.engine.dealing import pieces, stretches
from torso.engine.keeping import LARGE, Leaves, closed, handles_on
from torso.engine.parcels import Account, Cargo, Label, Ledger, Parcel, read, whole, write
from torso.engine.ray_session import Session
from torso.engine.worker import Home, Worker
from torso.errors import PlaceLost, RequestError, TorsoError
from torso.nets import Network, skeleton
from torso.personal.store import Store

if TYPE_CHECKING:
    from torso.config import RunConfig

T = TypeVar("T")
R = TypeVar("R")
_TRIES = 3  # workers that one share may cost: what kills as many is no accident


@dataclass
class Place:
    """One worker as the driver sees it; `account` is new whenever the process is."""

    slot: int
    actor: Any
    account: Account
    who: str = ""


@dataclass(frozen=True)
class Call:
    """A share under way: who does it, what that process holds, and where the answer will be."""

    clients: Sequence[int]
    store: Store | None
    place: Place
    actor: Any  # the process that was asked; the place may have another by now, and another …
    account: Account
    answer: Any
    left: Sequence[Any]  # where what clients go on with will lie
    ticket: int = 0  # under which the results wait to be added up


class Cluster:
    """`session`: the connection to Ray that was made for this run and ends with it."""

    def __init__(self, net: Network, federation: Federation, run: RunConfig, session: Session | None = None) -> None:
        self.federation, self.run, self.session = federation, run, session
        self.held = {"federation": federation, "net": net, "engine": self}
        self.net = net
        self.count = room(run)
        self.ledger, self.places = Ledger(), list[Place]()
        self.device = federation.device
        self.bytes_out = self.bytes_in = 0  # what has travelled, and …
        self.waited = 0.0  # … seconds in which the driver had nothing to do: for those who measure it
        self._born, self._tickets = 0, count(1)
        self._state_bytes = 0  # of what one client holds, at most
        self._notes: list[str] = []
        self._luggage: tuple[Any, ...] = ()

    def __enter__(self) -> Self:
        here = self.run.model_copy(update={"workers": threads(self.run)})
        device = "cuda" if self.run.ray.gpus_per_worker else "cpu"
        net = cloudpickle.dumps(skeleton(self.net))
        self._luggage = (Home.here(), net, ray.put(whole(self.federation)), here, device)
        try:
            self.places = [self._new(slot) for slot in range(self.count)]
            for place in self.places:
                if why := self._missing(place):
                    raise RequestError(f"run.ray.workers = {self.count}: worker {place.slot + 1} {why}")
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for place in self.places:
            ray.kill(place.actor)
        self.places, self._luggage = [], ()
        if self.session:
            self.session.__exit__(*exc)

    def last_words(self, how: str) -> None:
        if self.session:
            self.session.last_words(how)

    def repaired(self) -> tuple[str, ...]:
        notes, self._notes = self._notes, []
        return tuple(notes)

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """Share after share, in the order of the clients; all of them are under way before the first is waited for."""
        dealt = [share for share in zip(self.places, self._deal(work, clients), strict=True) if share[1]]
        calls = self._send(work, dealt, store)
        while calls:
            yield from self._answer(work, calls.pop(0))

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S:
        """The sum goes from worker to worker, in the order of the clients, once each has done its share."""
        dealt = [share for share in zip(self.places, self._deal(work, clients), strict=True) if share[1]]
        for call in self._send(work, dealt, store, keep=True):
            total = self._added(work, call, total)
        return total

    def _added(self, work: Work[Any], call: Call, total: S) -> S:
        """The sum with a share's results; the share is done again by another where its worker has died."""
        for _ in range(_TRIES):
            if (done := self._fetch(call.answer)) is not None:
                _, size = read(done.text, self.held, {})
                self._state_bytes = max(self._state_bytes, size)
                parcel = whole(total, self.held)
                self.bytes_out += parcel.size
                if (found := self._fetch(call.actor.add_up.remote(call.ticket, parcel))) is not None:
                    added: S = read(found.text, self.held, found.cargo.unload(self.device))
                    return self._with_handles(added, call)
            (call,) = self._send(work, [(self._instead(call), call.clients)], call.store, keep=True)
        raise _no_accident(call)

    def _deal(self, work: Work[T], clients: Sequence[int]) -> Sequence[Sequence[int]]:
        if not isinstance(work, Weighs):
            return pieces(clients, len(self.places))
        return stretches(clients, work.costs(self.federation.roster, clients), len(self.places))

    def _send(
        self,
        work: Work[T],
        dealt: Sequence[tuple[Place, Sequence[int]]],
        store: Store | None = None,
        keep: bool = False,
    ) -> list[Call]:
        """What all of them lack is put into the object store once. `keep`: results wait there to be added up."""
        written = []
        for place, clients in dealt:
            mine = work.for_clients(clients) if isinstance(work, Narrows) else work
            travelling, handles = closed(store, clients)
            text, named = write((mine, clients, travelling), self.held, self.ledger.label)
            written.append((place, clients, handles, text, named, named.keys() - place.account.holds))
        shared: set[Label] = set.intersection(*(lacks for *_, lacks in written)) if len(written) > 1 else set()
        tensors = {label: tensor for label, tensor in written[0][4].items() if label in shared} if written else {}
        common, calls = Cargo.of(tensors), []
        where = ray.put(common) if tensors else common
        self.bytes_out += common.data.nbytes
        for place, clients, handles, text, named, lacks in written:
            own = Cargo.of({label: named[label] for label in named if label in lacks and label not in shared})
            parcel = Parcel(text, own, place.account.settle())
            self.bytes_out += parcel.size
            place.account.holds |= lacks
            into = self._pieces(work, len(clients))
            ticket = next(self._tickets) if keep else 0
            asked = place.actor.do.options(num_returns=1 + into).remote(parcel, where, handles, into, ticket)
            answer, *left = asked if into else [asked]
            calls.append(Call(clients, store, place, place.actor, place.account, answer, left, ticket))
        return calls

    def _pieces(self, work: Work[T], clients: int) -> int:
        """In how many objects a share leaves what its clients hold."""
        if not isinstance(work, Leaves):
            return 0
        return clients if self._state_bytes >= LARGE else 1

    def _answer(self, work: Work[T], call: Call) -> list[T]:
        """A share's results; done again by another where its worker has died."""
        for _ in range(_TRIES):
            if (parcel := self._fetch(call.answer)) is not None:
                tensors = parcel.cargo.unload(self.device)
                for label, tensor in tensors.items():
                    call.account.holds.add(self.ledger.enter(tensor, label))
                results, size = read(parcel.text, self.held, tensors)
                self._state_bytes = max(self._state_bytes, size)
                return [self._with_handles(result, call) for result in results]
            (call,) = self._send(work, [(self._instead(call), call.clients)], call.store)
        raise _no_accident(call)

    def _fetch(self, answer: Any) -> Parcel | None:
        """What a worker answers; None where it has died. Raises what the work itself has raised."""
        began = time.perf_counter()
        try:
            ray.wait([answer], fetch_local=False)
            self.waited += time.perf_counter() - began
            parcel: Parcel = ray.get(answer)
        except RayTaskError as error:
            if isinstance(error.cause, TorsoError):
                raise error.cause from None
            raise
        except (RayActorError, ObjectLostError, OutOfMemoryError):
            return None
        self.bytes_in += parcel.size
        return parcel

    def _with_handles(self, result: R, call: Call) -> R:
        """A result with handles in place of what was left to the clients of a share, which stays where it is."""
        if not call.left:
            return result
        handles, left = handles_on(call.left, call.clients), vars(result)["left"]
        vars(result)["left"] = {k: handles[k] if k in handles and state is None else state for k, state in left.items()}
        return result

    def _instead(self, call: Call) -> Place:
        """Who does a share whose worker has died: a new one in its place, or one that is left."""
        place = call.place
        if place.account is not call.account:  # replaced since
            return place
        lost = f"{place.who} was lost with a share of {len(call.clients)} clients"
        if place not in self.places:  # lost with another share, and not replaced
            return self._left(place, lost)
        ray.kill(place.actor)
        self.ledger.accounts.remove(place.account)
        new = self._new(place.slot)
        if not (why := self._missing(new)):
            place.actor, place.account, place.who = new.actor, new.account, new.who
            self._notes.append(f"{lost}; {place.who} took its place and did it again")
            return place
        ray.kill(new.actor)
        self.ledger.accounts.remove(new.account)
        self.places.remove(place)
        if not self.places:
            raise PlaceLost(f"{lost}, no worker is left, and another {why}")
        return self._left(place, lost)

    def _left(self, place: Place, lost: str) -> Place:
        left = self.places[place.slot % len(self.places)]
        self._notes.append(f"{lost}; there was none to take its place, and {left.who} did it again")
        return left

    def _new(self, slot: int) -> Place:
        self._born += 1
        account = Account()
        self.ledger.accounts.append(account)
        made = ray.remote(Worker).options(**needs(self.run), max_restarts=0)
        return Place(slot, made.remote(self._born, *self._luggage), account)

    def _missing(self, place: Place) -> str:
        """Wait for a worker to start: why it has not, or nothing."""
        try:
            pid, host = ray.get(place.actor.hello.remote(), timeout=self.run.ray.wait)
        except GetTimeoutError:
            return late(self.run)
        except RayActorError as error:
            return f"could not start: {str(error).strip().splitlines()[-1]}"
        place.who = f"worker {place.slot + 1} (process {pid} on {host})"
        return ""


def _no_accident(call: Call) -> PlaceLost:
    return PlaceLost(
        f"{_TRIES} workers have died over the same {len(call.clients)} clients, {call.clients[0]} among them: it "
        "is no accident (memory that runs out, say; Ray's logs tell more)"
    )
