"""Who is there: clients are greeted, agree on what the run needs, and get a number; some come later, some never fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torso.config import Config
from torso.errors import PlaceLost, RequestError
from torso.federation.agreement import Agreement, agree, joined_later
from torso.federation.description import Description
from torso.federation.letters import Letter, Question, Reply, beside, digest, reply_of
from torso.federation.links import ServerLink, Silence
from torso.federation.reasons import printable
from torso.nets import Tensors, wants_of
from torso.runs.job import Job

_GREETING = 30.0  # seconds that a client has to say who it is, or to read the terms of a run
_STILL = 5.0  # seconds in which one who is there answers to its name
_LOOK = 0.2  # seconds between two looks at who has come
_WHO = Letter(Question(kind="who")).encode()

Described = tuple[Description, Tensors]


@dataclass
class Assembly:
    """The clients of a federation as the server meets them. `say` is told what a person should know; `changed` is
    called whenever the agreement has."""

    link: ServerLink
    config: Config
    run: str
    say: Callable[[str], None]
    agreement: Agreement | None = None
    changed: Callable[[Agreement], None] = lambda _: None
    job: Job | None = None
    described: dict[int, Described] = field(default_factory=dict)  # by connection
    refused: dict[int, str] = field(default_factory=dict)
    seated: dict[int, int] = field(default_factory=dict)  # client → connection

    def name(self, client: int) -> str:
        return self.agreement.names[client] if self.agreement else f"client {client}"

    def test_samples(self, client: int) -> int:
        assert self.agreement is not None
        return self.agreement.test_sizes[client]

    def greet(self) -> Mapping[int, str]:
        """Ask those who have come since the last look who they are; everybody who is there, by connection.

        Who has gone is forgotten: when it is back, it may be another."""
        there = self.link.there()
        self.described = {node: found for node, found in self.described.items() if node in there}
        self.refused = {node: reason for node, reason in self.refused.items() if node in there}
        new = [node for node in there if node not in self.described and node not in self.refused]
        for node, answer in self.link.exchange(dict.fromkeys(new, _WHO), _GREETING) if new else ():
            try:
                self._introduce(node, _introduced(answer, there[node]))
            except RequestError as error:
                if isinstance(answer, Silence):
                    continue  # asked again at the next look
                self._refuse(node, there[node] or f"connection {node}", str(error))
        return there

    def _introduce(self, node: int, found: Described) -> None:
        """A name is one client's. Where no key stands for it, who was there before must still answer to it."""
        name = found[0].name
        before = next((other for other, (one, _) in self.described.items() if one.name == name), None)
        if before is not None:
            answers = [not isinstance(answer, Silence) for _, answer in self.link.exchange({before: _WHO}, _STILL)]
            if any(answers):
                raise RequestError(f"there is a client {name!r} already. Expected: a name of its own")
            del self.described[before]
        self.described[node] = found

    def gather(self, wanted: int, least: int, seconds: float, heed: Callable[[], None] = lambda: None) -> None:
        """Wait until so many clients are there; go on with fewer, if enough, when the time is over. `heed` raises when
        somebody does not want to wait any longer."""
        until, told = time.monotonic() + seconds, -1
        while True:
            heed()
            there = self.greet()
            here = [node for node in self.described if node in there]
            if len(here) >= wanted:
                break
            if time.monotonic() > until:
                if len(here) >= least:
                    break
                raise PlaceLost(
                    f"{len(here)} clients are there after {seconds:.0f} s (run.flower.wait), and train.min_clients = "
                    f"{least}. Start more of them with: torso federation join"
                )
            if len(here) != told:
                told = len(here)
                self.say(f"waiting for clients: {told} of {wanted} are there")
            time.sleep(_LOOK)

    def agree(self) -> Agreement:
        """What those who are there agree on; who does not fit is told why, and the run goes on without."""
        wants = wants_of(self.config.model.body, self.config.model.weights)
        self.agreement = agree(list(self.described.values()), self.config.data, wants)
        for node, (description, _) in list(self.described.items()):
            if reason := self.agreement.refused.get(description.name):
                self._refuse(node, description.name, reason)
        return self.agreement

    def seat(self, job: Job) -> None:
        """Send everybody the terms of the run."""
        self.job = job
        self._seat([node for node in self.described if self._number(node) is not None])

    def taken(self) -> Mapping[int, int]:
        """Client → connection, of those who are there now. Who has just come is seated first, as what it was, or as a
        newcomer."""
        there = self.greet()
        self.seated = {client: node for client, node in self.seated.items() if node in there}
        at = set(self.seated.values())
        new = [node for node in self.described if node in there and node not in at and node not in self.refused]
        for node in new:
            if self._number(node) is None:
                self._come_later(node)
        if new:
            self._seat([node for node in new if node not in self.refused])
        return self.seated

    def _number(self, node: int) -> int | None:
        assert self.agreement is not None
        name = self.described[node][0].name
        return self.agreement.names.index(name) if name in self.agreement.names else None

    def _come_later(self, node: int) -> None:
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
        """Why a client that comes back is not what it was; "": it is."""
        assert self.agreement is not None
        one, client = self.described[node][0], self._number(node)
        assert client is not None
        now, then = (one.train_samples, one.test_samples), (self.agreement.sizes[client], self.test_samples(client))
        if now == then:
            return ""
        return (
            f"it has {now[0]} training and {now[1]} test samples, and began this run with {then[0]} and {then[1]}. "
            "Expected: the same data until the next run"
        )

    def _seat(self, nodes: list[int]) -> None:
        """Send the terms to clients that have a number; tensors that the run begins with to those who lack them."""
        for node, reason in {node: self._other_data(node) for node in nodes}.items():
            if reason:
                self._refuse(node, self.described[node][0].name, reason)
        assert self.job is not None
        base, config = digest(self.job.model), self.job.config.as_toml()  # the same for all
        letters = {node: self._terms(node, base, config) for node in nodes if node not in self.refused}
        while letters:
            lacking: dict[int, Letter] = {}
            for node, answer in self.link.exchange({n: letter.encode() for n, letter in letters.items()}, _GREETING):
                name, client = self.described[node][0].name, self._number(node)
                assert client is not None
                reply = reply_of(answer)
                if isinstance(reply, Reply) and reply.said.kind == "agreed":
                    self.seated[client] = node
                elif isinstance(reply, Reply) and reply.said.kind == "lacks":
                    if not letters[node].part("base"):
                        lacking[node] = Letter(letters[node].question, beside("base", self.job.model))
                    else:
                        self._refuse(node, name, "it asks for tensors that it was sent")
                elif isinstance(answer, Silence):
                    self.say(f"{name} has not answered: {printable(answer.reason)}")
                    self.described.pop(node)  # greeted again when it is back
                else:
                    self._refuse(node, name, reply if isinstance(reply, str) else reply.said.reason)
            letters = lacking

    def _terms(self, node: int, base: str, config: str) -> Letter:
        assert self.agreement is not None
        client = self._number(node)
        assert client is not None
        return Letter(
            Question(
                kind="agree",
                run=self.run,
                client=client,
                base=base,
                config=config,
                agreement=self.agreement.seen_by(client).model_dump_json(),
            )
        )

    def _refuse(self, node: int, name: str, reason: str) -> None:
        """Told on both sides."""
        reason = printable(reason)
        self.refused[node] = reason
        self.described.pop(node, None)
        self.say(f"{name} is refused: {reason}")
        letter = Letter(Question(kind="refused", reason=reason)).encode()
        for _ in self.link.exchange({node: letter}, _GREETING):
            pass


def _introduced(answer: bytes | Silence, admitted: str) -> Described:
    """What a client says of itself; `admitted` is the name that its key stands for."""
    reply = reply_of(answer)
    if isinstance(reply, str) or reply.said.kind != "described":
        raise RequestError(reply if isinstance(reply, str) else reply.said.reason or f"it said {reply.said.kind!r}")
    description = Description.read(reply.said.description, "its description cannot be read")
    if admitted and description.name != admitted:
        raise RequestError(f"it calls itself {description.name!r}, and its key was admitted as {admitted!r}")
    return description, reply.tensors
