"""Manages the clients of a run on the server: asks who they are, lets them agree, numbers them, admits newcomers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torso.config import Config
from torso.errors import NoWorkerLeft, RequestError
from torso.federation.agreement import Agreement, agree, joined_later
from torso.federation.description import Description
from torso.federation.protocol import Reply, Request, RequestHeader, digest, parse_reply, part_tensors
from torso.federation.reasons import printable
from torso.federation.transport import MissingAnswer, ServerLink
from torso.nets import Tensors, wants_of
from torso.runs.job import Job

_GREETING = 30.0  # seconds for a client to describe itself, or to accept the terms of a run
_STILL_THERE = 5.0  # seconds for a client to answer, if another one comes with its name
_LOOK = 0.2  # seconds between two looks for new clients
_WHO = Request(RequestHeader(kind="who")).encode()

Described = tuple[Description, Tensors]


@dataclass
class ConnectedClients:
    """The server's view of its clients: who is connected, who is refused, and which client is which connection.

    A connection is a number of the link; a client is a number of the run. A client is *seated* after it has accepted
    the terms of the run: then it has both."""

    link: ServerLink
    config: Config
    run: str  # its id
    say: Callable[[str], None]  # prints a line for the operator
    agreement: Agreement | None = None
    changed: Callable[[Agreement], None] = lambda _: None  # called with every new agreement
    job: Job | None = None
    described: dict[int, Described] = field(default_factory=dict)  # connection → what the client said of itself
    refused: dict[int, str] = field(default_factory=dict)  # connection → reason
    seated: dict[int, int] = field(default_factory=dict)  # client → connection

    def name(self, client: int) -> str:
        return self.agreement.names[client] if self.agreement else f"client {client}"

    def test_samples(self, client: int) -> int:
        assert self.agreement is not None
        return self.agreement.test_sizes[client]

    def greet(self) -> Mapping[int, str]:
        """Ask new clients to describe themselves. Returns all that are connected: connection → name of the key.

        Connections that are gone are forgotten: when a connection is back, it may be another client."""
        there = self.link.there()
        self.described = {node: found for node, found in self.described.items() if node in there}
        self.refused = {node: reason for node, reason in self.refused.items() if node in there}
        new = [node for node in there if node not in self.described and node not in self.refused]
        for node, answer in self.link.exchange(dict.fromkeys(new, _WHO), _GREETING) if new else ():
            try:
                self._introduce(node, _introduced(answer, there[node]))
            except RequestError as error:
                if isinstance(answer, MissingAnswer):
                    continue  # it is asked again next time
                self._refuse(node, there[node] or f"connection {node}", str(error))
        return there

    def _introduce(self, node: int, found: Described) -> None:
        """Accept a description. If another connection has the same name and still answers, this one is refused.

        Without authentication of clients, this is how a client that was restarted gets its name back."""
        name = found[0].name
        before = next((other for other, (one, _) in self.described.items() if one.name == name), None)
        if before is not None:
            answers = [
                not isinstance(answer, MissingAnswer) for _, answer in self.link.exchange({before: _WHO}, _STILL_THERE)
            ]
            if any(answers):
                raise RequestError(f"there is a client {name!r} already. Expected: a unique name")
            del self.described[before]
        self.described[node] = found

    def gather(self, wanted: int, least: int, seconds: float, heed: Callable[[], None] = lambda: None) -> None:
        """Wait until `wanted` clients are there; after `seconds`, at least `least` are enough.

        `heed` is called in every iteration; it raises to stop waiting."""
        until = time.monotonic() + seconds
        reported = -1
        while True:
            heed()
            there = self.greet()
            here = [node for node in self.described if node in there]
            if len(here) >= wanted:
                break
            if time.monotonic() > until:
                if len(here) >= least:
                    break
                raise NoWorkerLeft(
                    f"{len(here)} clients are there after {seconds:.0f} s (run.flower.wait), and train.min_clients = "
                    f"{least}. Start more of them with: torso federation join"
                )
            if len(here) != reported:
                reported = len(here)
                self.say(f"waiting for clients: {reported} of {wanted} are there")
            time.sleep(_LOOK)

    def agree(self) -> Agreement:
        """The agreement of the clients that are there. Those that do not fit are told the reason and left out."""
        wants = wants_of(self.config.model.body, self.config.model.weights)
        self.agreement = agree(list(self.described.values()), self.config.data, wants)
        for node, (description, _) in list(self.described.items()):
            if reason := self.agreement.refused.get(description.name):
                self._refuse(node, description.name, reason)
        return self.agreement

    def send_terms(self, job: Job) -> None:
        """Send the terms of the run to all clients of the agreement."""
        self.job = job
        self._send_terms([node for node in self.described if self._number(node) is not None])

    def by_client(self) -> Mapping[int, int]:
        """Client → connection, of all that are there now.

        Clients that have just connected get the terms first: under their old number, or as newcomers."""
        there = self.greet()
        self.seated = {client: node for client, node in self.seated.items() if node in there}
        with_terms = set(self.seated.values())
        new = [node for node in self.described if node in there and node not in {*with_terms, *self.refused}]
        for node in new:
            if self._number(node) is None:
                self._come_later(node)
        if new:
            self._send_terms([node for node in new if node not in self.refused])
        return self.seated

    def _number(self, node: int) -> int | None:
        """The client's number in the run; None if it is not in the agreement."""
        assert self.agreement is not None
        name = self.described[node][0].name
        return self.agreement.names.index(name) if name in self.agreement.names else None

    def _come_later(self, node: int) -> None:
        """Add a client to the agreement as a newcomer, or refuse it."""
        assert self.agreement is not None
        description, tensors = self.described[node]
        found = joined_later(self.agreement, description, tensors)
        if isinstance(found, str):
            self._refuse(node, description.name, found)
            return
        self.agreement = found
        self.changed(found)
        self.say(f"{description.name} has come: it will get a model when training is over")

    def _other_data(self, node: int) -> str:
        """Why a client that has reconnected is refused: it has other data; "" if it has not."""
        assert self.agreement is not None
        client = self._number(node)
        assert client is not None
        description = self.described[node][0]
        now = (description.train_samples, description.test_samples)
        then = (self.agreement.sizes[client], self.test_samples(client))
        if now == then:
            return ""
        return (
            f"it has {now[0]} training and {now[1]} test samples, and began this run with {then[0]} and {then[1]}. "
            "Expected: the same data until the next run"
        )

    def _send_terms(self, nodes: list[int]) -> None:
        """Send the terms to clients that have a number.

        The request has a digest of the initial model. A client that cannot compute this model from the seed answers
        that it lacks these tensors, and is asked again with them."""
        for node, reason in {node: self._other_data(node) for node in nodes}.items():
            if reason:
                self._refuse(node, self.described[node][0].name, reason)
        assert self.job is not None
        base = digest(self.job.model)  # the same for all clients, as is the config
        config = self.job.config.as_toml()
        requests = {node: self._terms(node, base, config) for node in nodes if node not in self.refused}
        while requests:
            lacking: dict[int, Request] = {}
            for node, answer in self.link.exchange({n: request.encode() for n, request in requests.items()}, _GREETING):
                name = self.described[node][0].name
                client = self._number(node)
                assert client is not None
                reply = parse_reply(answer)
                if isinstance(reply, Reply) and reply.header.kind == "agreed":
                    self.seated[client] = node
                elif isinstance(reply, Reply) and reply.header.kind == "lacks":
                    if not requests[node].part("base"):
                        lacking[node] = Request(requests[node].header, part_tensors("base", self.job.model))
                    else:
                        self._refuse(node, name, "it asks for tensors that it was sent")
                elif isinstance(answer, MissingAnswer):
                    self.say(f"{name} has not answered: {printable(answer.reason)}")
                    self.described.pop(node)  # it is asked to describe itself again
                else:
                    self._refuse(node, name, reply if isinstance(reply, str) else reply.header.reason)
            requests = lacking

    def _terms(self, node: int, base: str, config: str) -> Request:
        assert self.agreement is not None
        client = self._number(node)
        assert client is not None
        return Request(
            RequestHeader(
                kind="agree",
                run=self.run,
                client=client,
                base=base,
                config=config,
                agreement=self.agreement.seen_by(client).model_dump_json(),
            )
        )

    def _refuse(self, node: int, name: str, reason: str) -> None:
        """Refuse a client, and tell both the operator and the client why."""
        reason = printable(reason)
        self.refused[node] = reason
        self.described.pop(node, None)
        self.say(f"{name} is refused: {reason}")
        request = Request(RequestHeader(kind="refused", reason=reason)).encode()
        for _ in self.link.exchange({node: request}, _GREETING):
            pass


def _introduced(answer: bytes | MissingAnswer, admitted: str) -> Described:
    """The description in a client's answer. `admitted`: the name under which its key was admitted, or ""."""
    reply = parse_reply(answer)
    if isinstance(reply, str) or reply.header.kind != "described":
        raise RequestError(reply if isinstance(reply, str) else reply.header.reason or f"it said {reply.header.kind!r}")
    description = Description.read(reply.header.description, "its description cannot be read")
    if admitted and description.name != admitted:
        raise RequestError(f"it calls itself {description.name!r}, and its key was admitted as {admitted!r}")
    return description, reply.tensors
