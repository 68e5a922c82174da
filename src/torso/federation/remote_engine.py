"""The engine of a real federation: it sends work as requests to clients, and yields the results from their replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

from torso.engine import SERVER, Engine, Work
from torso.errors import NoWorkerLeft, RequestError
from torso.federation.participation_log import ParticipationLog
from torso.federation.protocol import Reply, Request, Unreadable, parse_reply, part_tensors
from torso.federation.reasons import printable
from torso.federation.remote_calls import RemoteCall, remote_call_of
from torso.federation.transport import ServerLink
from torso.measure.counts import TestCounts
from torso.measure.evaluate import GenericMeasureWork
from torso.personal.store import Store
from torso.runs.faults import UNREADABLE, WRONG_NUMBERS
from torso.runs.job import Job
from torso.runs.uploads import RefusedUpload

T = TypeVar("T")


class ClientConnections(Protocol):
    """The clients of a run and their connections."""

    def by_client(self) -> Mapping[int, int]:
        """Client → connection, of all that are there now; clients that have just connected are included."""
        ...

    def name(self, client: int) -> str: ...

    def test_samples(self, client: int) -> int:
        """The number of test samples in the client's description."""
        ...


class RemoteEngine:
    """An engine whose clients are on other machines.

    `deadline`: seconds for the replies to one piece of work. `wait`: seconds to wait for the least number of clients.
    `local`: the engine for work on the server's own test set; None: it has no test set. `given_up`: whether the user
    has asked to stop, so that waiting for clients ends."""

    def __init__(
        self,
        job: Job,
        link: ServerLink,
        connections: ClientConnections,
        book: ParticipationLog,
        deadline: float,
        wait: float,
        local: Engine | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.job, self.link, self.connections, self.book, self.local = job, link, connections, book, local
        self.deadline, self.wait, self.given_up = deadline, wait, given_up
        self._notes: list[str] = []

    def __enter__(self) -> Self:
        if self.local is not None:
            self.local.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.local is not None:
            self.local.__exit__(*exc)

    def available_clients(self) -> Collection[int]:
        """The training clients that are there; waits until there are train.min_clients of them."""
        least = self.job.config.train.min_clients
        training = set(self.job.roster.training.tolist())
        until = time.monotonic() + self.wait
        told = False
        while len(here := self.connections.by_client().keys() & training) < least:  # newcomers do not train
            if time.monotonic() > until or self.given_up():
                raise NoWorkerLeft(
                    f"{len(here)} clients are there and train.min_clients = {least}; waited {self.wait:.0f} s "
                    "(run.flower.wait)"
                )
            if not told:
                self._notes.append(f"waiting for clients: {len(here)} of at least {least} are there")
                told = True
            time.sleep(0.2)
        return here

    def counted(self, round: int, clients: Sequence[int]) -> None:
        self.book.counted(round, clients)

    def repaired(self) -> tuple[str, ...]:
        """Remarks since the last call, without duplicates: a missing client is noted at every request."""
        notes = tuple(dict.fromkeys(self._notes))
        self._notes = []
        return notes

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """The results in the order of `clients`; clients without a usable reply are left out."""
        at_server: Any = work
        if isinstance(at_server, GenericMeasureWork | TestCounts) or list(clients) == [SERVER]:
            if self.local is None:
                raise RequestError(f"{type(work).__name__} is work for the server's own data, and it has none")
            yield from self.local.map(work, clients, store)
            return
        call = remote_call_of(work, self.job, self.book, self.connections.test_samples)
        order = list(clients)
        done = 0  # clients whose results have been yielded
        waiting: dict[int, Any] = {}  # results that arrived before their turn
        for client, result in self.ask(call, order):
            waiting[client] = result
            while done < len(order) and order[done] in waiting:
                found = waiting.pop(order[done])
                done += 1
                if found is not None:
                    yield found

    def ask(self, call: RemoteCall, clients: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Pairs of client and result, as the replies arrive.

        A client that lacks tensors is asked again with these tensors."""
        connections = self.connections.by_client()
        until = time.monotonic() + self.deadline
        there = [client for client in clients if client in connections]
        for client in clients:
            if client not in connections:
                self._notes.append(f"{self.connections.name(client)} is not there")
                yield client, call.nothing()
        requests = {client: call.request(client) for client in there}
        while requests:
            lacking: dict[int, Request] = {}
            for client, reply in self._exchange(requests, connections, max(until - time.monotonic(), 0.0)):
                wanted = self._lacked(call, requests[client], reply)
                if wanted is not None:
                    lacking[client] = wanted
                else:
                    yield client, self._result(call, client, reply)
            requests = lacking

    def _exchange(
        self, requests: Mapping[int, Request], connections: Mapping[int, int], seconds: float
    ) -> Iterator[tuple[int, Reply | str]]:
        """Pairs of client and its reply, or the reason why there is none."""
        clients = {connections[client]: client for client in requests}
        for connection, answer in self.link.exchange(
            {connections[c]: request.encode() for c, request in requests.items()}, seconds
        ):
            yield clients[connection], parse_reply(answer)

    def _lacked(self, call: RemoteCall, request: Request, reply: Reply | str) -> Request | None:
        """The request again, with the tensors that the client lacks; None if the reply is not about missing tensors."""
        if isinstance(reply, str) or reply.header.kind != "lacks":
            return None
        known = call.known()
        more = [part_tensors(*known[wanted]) for wanted in reply.header.lacks if wanted in known]
        added = {name: tensor for tensors in more for name, tensor in tensors.items()}
        if not added or added.keys() <= request.tensors.keys():
            return None  # it asks for unknown tensors, or for those that it was sent: treated as a wrong reply
        return replace(request, tensors={**request.tensors, **added})

    def _result(self, call: RemoteCall, client: int, reply: Reply | str) -> Any:
        """The result from a reply, or its replacement if the reply is missing or wrong."""
        name = self.connections.name(client)
        if not isinstance(reply, str) and reply.header.kind != call.reply:
            reply = reply.header.reason or f"it said {reply.header.kind!r}"
        if isinstance(reply, str):
            self._notes.append(f"{name} has not answered: {printable(reply)}")
            return call.refused(client, UNREADABLE) if isinstance(reply, Unreadable) else call.nothing()
        try:
            return call.result(client, reply)
        except RequestError as error:
            self._notes.append(f"what {name} sent is not used: {printable(str(error))}")
            return call.refused(client, error.kind if isinstance(error, RefusedUpload) else WRONG_NUMBERS)
