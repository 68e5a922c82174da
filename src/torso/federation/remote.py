"""The engine of a real federation: a piece of work is a letter to each client, its result what they reply.

Nothing of a method is written here. Which letter stands for which work: `_Visits`, `_Sums`, `_Exams`, `_Pooled`.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import torch

from torso.engine import SERVER, Engine, Work
from torso.errors import PlaceLost, RequestError, RunFailed
from torso.federation.letters import Letter, Question, Reply, beside, digest
from torso.federation.links import ServerLink, Silence
from torso.federation.reasons import printable
from torso.learn.stacked import all_finite
from torso.measure.counts import TestCounts
from torso.measure.evaluate import Exam, PooledExam, ServerExam, Values
from torso.nets import Tensors
from torso.personal.store import Store
from torso.runs.cost import up
from torso.runs.evaluation import LastVisit
from torso.runs.exchange import ClassSums
from torso.runs.job import Job
from torso.runs.messages import Message, Sent, Told, check_schema
from torso.runs.visit import Visit

T = TypeVar("T")


class Seats(Protocol):
    """Who sits where: which client is reached over which connection."""

    def taken(self) -> Mapping[int, int]:
        """Client → connection, of those who are there now; newcomers that have just come are seated first."""
        ...

    def name(self, client: int) -> str: ...

    def test_samples(self, client: int) -> int: ...


class Errand(Protocol):
    """What one piece of work is between server and client."""

    reply: str  # the kind of reply that answers

    def letter(self, client: int) -> Letter:
        """What a client is asked, without tensors that it should have."""
        ...

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        """Digest → (part, tensors) that a client can ask for."""
        ...

    def result(self, client: int, reply: Reply) -> Any:
        """What the work gives, from a reply that is checked here."""
        ...

    def nothing(self) -> Any:
        """What stands for a client that has not answered; None: nothing does."""
        ...

    def close(self, clients: int) -> None:
        """All of so many clients have answered, or will not: RunFailed where that ends the run."""


@dataclass
class Book:
    """What the server remembers of its letters: in which rounds each client was heard, and which it may go back to."""

    run: str
    heard: dict[int, int] = field(default_factory=dict)  # client → the last round in which its answer counted
    history: dict[int, list[int]] = field(default_factory=dict)  # client → all those rounds, ascending
    checkpoints: Callable[[], Collection[int]] = tuple  # the rounds that the run may be resumed at

    def counted(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            self.heard[client] = round
            self.history.setdefault(client, []).append(round)

    def question(self, kind: Any, client: int, **more: Any) -> Question:
        return Question(
            kind=kind,
            run=self.run,
            client=client,
            since=self.heard.get(client, 0),
            back=self._back(client),
            **more,
        )

    def _back(self, client: int) -> tuple[int, ...]:
        """The rounds whose states the client would go on from if the run were resumed at one of its checkpoints."""
        heard = self.history.get(client, ())
        places = {bisect_right(heard, round) for round in self.checkpoints()} - {0}
        return tuple(heard[place - 1] for place in sorted(places))


class Remote:
    """`local`: where the server works for itself, on a test set of its own; none: it has none. `given_up`: whether
    somebody wants the run to stop, who need not wait for clients."""

    def __init__(
        self,
        job: Job,
        link: ServerLink,
        seats: Seats,
        book: Book,
        deadline: float,
        wait: float,
        local: Engine | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.job, self.link, self.seats, self.book, self.local = job, link, seats, book, local
        self.deadline, self.wait, self.given_up = deadline, wait, given_up
        self._notes: list[str] = []

    def __enter__(self) -> Self:
        if self.local is not None:
            self.local.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.local is not None:
            self.local.__exit__(*exc)

    def present(self) -> Collection[int]:
        least, training = self.job.config.train.min_clients, set(self.job.roster.training.tolist())
        until = time.monotonic() + self.wait
        told = False
        while len(here := self.seats.taken().keys() & training) < least:  # who came later does not train
            if time.monotonic() > until or self.given_up():
                raise PlaceLost(
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
        notes, self._notes = tuple(self._notes), []
        return notes

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        """Replies in the order of `clients`; of who does not answer in time there is none."""
        at_server: Any = work
        if isinstance(at_server, ServerExam | TestCounts) or list(clients) == [SERVER]:
            if self.local is None:
                raise RequestError(f"{type(work).__name__} is work for the server's own data, and it has none")
            yield from self.local.map(work, clients, store)
            return
        errand = self._errand(work)
        order, done, came = list(clients), 0, dict[int, Any]()
        for client, result in self.ask(errand, order):
            came[client] = result
            while done < len(order) and order[done] in came:
                found = came.pop(order[done])
                done += 1
                if found is not None:
                    yield found
        errand.close(len(order))

    def ask(self, errand: Errand, clients: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Each client with what it replies, or with what stands for it, as they come; tensors are sent to those who
        lack them."""
        seats, until = self.seats.taken(), time.monotonic() + self.deadline
        there = [client for client in clients if client in seats]
        for client in clients:
            if client not in seats:
                self._notes.append(f"{self.seats.name(client)} is not there")
                yield client, errand.nothing()
        letters = {client: errand.letter(client) for client in there}
        while letters:
            lacking: dict[int, Letter] = {}
            for client, reply in self._exchange(letters, seats, max(until - time.monotonic(), 0.0)):
                wanted = self._lacked(errand, letters[client], reply)
                if wanted is not None:
                    lacking[client] = wanted
                else:
                    yield client, self._result(errand, client, reply)
            letters = lacking

    def _exchange(
        self, letters: Mapping[int, Letter], seats: Mapping[int, int], seconds: float
    ) -> Iterator[tuple[int, Reply | str]]:
        """Each client with its reply, or with why there is none."""
        clients = {seats[client]: client for client in letters}
        for seat, answer in self.link.exchange({seats[c]: letter.encode() for c, letter in letters.items()}, seconds):
            client = clients[seat]
            try:
                yield client, answer.reason if isinstance(answer, Silence) else Reply.decode(answer)
            except RequestError as error:
                yield client, str(error)

    def _lacked(self, errand: Errand, letter: Letter, reply: Reply | str) -> Letter | None:
        """The letter once more with the tensors that the client lacks, where it lacks some."""
        if isinstance(reply, str) or reply.said.kind != "lacks":
            return None
        known = errand.known()
        more = [beside(*known[wanted]) for wanted in reply.said.lacks if wanted in known]
        added = {name: tensor for tensors in more for name, tensor in tensors.items()}
        if not added or added.keys() <= letter.tensors.keys():
            return None  # it asks for what nobody has, or for what it was sent: it has not answered
        return replace(letter, tensors={**letter.tensors, **added})

    def _result(self, errand: Errand, client: int, reply: Reply | str) -> Any:
        name = self.seats.name(client)
        if not isinstance(reply, str) and reply.said.kind != errand.reply:
            reply = reply.said.reason or f"it said {reply.said.kind!r}"
        if isinstance(reply, str):
            self._notes.append(f"{name} has not answered: {printable(reply)}")
            return errand.nothing()
        try:
            return errand.result(client, reply)
        except RequestError as error:
            self._notes.append(f"what {name} sent is not used: {printable(str(error))}")
            return errand.nothing()

    def _errand(self, work: Any) -> Errand:
        if isinstance(work, Visit):
            return _Visits(self.job, self.book, work.told)
        if isinstance(work, ClassSums):
            return _Sums(self.job, self.book, work.model)
        if isinstance(work, Exam) and isinstance(work.how.visit, LastVisit):
            return _Exams(self.job, self.book, work.how.visit.told, work.model, work.names, work.how.visit.state.round)
        if isinstance(work, PooledExam):
            return _Pooled(self.job, self.book, work.model, self.seats.test_samples)
        raise RequestError(
            f"{type(work).__name__} is work that clients of a real federation are not asked for: it would take more "
            "than messages. Accepted there: rounds, accuracies, class sums"
        )


def standing_letter(
    book: Book, kind: str, client: int, told: Told, model: Tensors, round: int, base: str, origin: str, **more: Any
) -> Letter:
    """What is told for one more visit, with the tensors that accuracy is reported on where those are others."""
    message = told.message(client)
    shown = {name: tensor for name, tensor in model.items() if tensor is not told.model[name]}
    question = book.question(
        kind, client, round=round, numbers=message.numbers, base=base, origin=origin if told.origin else "", **more
    )
    return Letter(question, {**message.tensors, **beside("shown", shown)})


@dataclass(frozen=True)
class _Known:
    """The tensors that a client should have already."""

    base: Tensors
    origin: Tensors = field(default_factory=dict)

    @classmethod
    def beside(cls, told: Told) -> _Known:
        return cls({name: t for name, t in told.model.items() if name not in set(told.travels)}, dict(told.origin))

    def digests(self) -> tuple[str, str]:
        return digest(self.base), digest(self.origin)

    def by_digest(self) -> dict[str, tuple[str, Tensors]]:
        base, origin = self.digests()
        return {base: ("base", self.base), origin: ("origin", self.origin)}


class _Plain:
    """The base of errands whose clients are asked one by one: none of them can end the run for the others."""

    def close(self, clients: int) -> None: ...


class Telling(_Plain):
    """The base of errands that tell what a visit begins with."""

    def __init__(self, job: Job, book: Book, told: Told) -> None:
        self.job, self.book, self.told = job, book, told
        self._known = _Known.beside(told)
        self.base, self.origin = self._known.digests()

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self._known.by_digest()


class _Visits(Telling):
    reply = "sent"

    def __init__(self, job: Job, book: Book, told: Told) -> None:
        super().__init__(job, book, told)
        self.diverged: list[int] = []

    def letter(self, client: int) -> Letter:
        message = self.told.message(client)
        return Letter(
            self.book.question(
                "told",
                client,
                round=self.told.round,
                numbers=message.numbers,
                base=self.base,
                origin=self.origin,
            ),
            message.tensors,
        )

    def result(self, client: int, reply: Reply) -> Sent:
        if reply.said.numbers is None:
            raise RequestError("it has no numbers. Expected: those of a message 'sent'")
        message = Message(reply.said.numbers, reply.tensors)
        message.checked(up(self.job.stage(self.told.round), self.told, client))
        samples = int(self.job.roster.sizes[client])
        found = (message.numbers.round, message.numbers.client, message.numbers.samples)
        if found != (self.told.round, client, samples):
            raise RequestError(
                f"it is of round {found[0]}, client {found[1]}, {found[2]} samples. "
                f"Expected: round {self.told.round}, client {client}, {samples} samples"
            )
        sent = Sent.received(message)
        if not bool(sent.finite & all_finite((sent.loss, *message.tensors.values()))):
            self.diverged.append(client)
            raise RequestError("its loss or its weights are not finite")
        return sent

    def nothing(self) -> None:
        return None

    def close(self, clients: int) -> None:
        """One client that diverges, or pretends to, is no reason to end; all of them are, as in a simulation."""
        if self.diverged and len(self.diverged) == clients:
            raise RunFailed(f"non-finite loss in round {self.told.round}, client {min(self.diverged)}")


class _Exams(Telling):
    reply = "values"

    def __init__(self, job: Job, book: Book, told: Told, model: Tensors, names: tuple[str, ...], round: int) -> None:
        super().__init__(job, book, told)
        self.model, self.names, self.round = model, names, round

    def letter(self, client: int) -> Letter:
        args = (client, self.told, self.model, self.round, self.base, self.origin)
        return standing_letter(self.book, "exam", *args, names=self.names)

    def result(self, client: int, reply: Reply) -> Values:
        sweep = self.job.config.personalize.sweep
        accepted = {*self.names, *(f"{name}@{epochs}" for name in self.names for epochs in sweep)}
        found = _values(reply, accepted)
        for name, (value,) in found.items():
            if not (math.isnan(value) or 0 <= value <= _ALL):  # NaN: it has no test data
                raise RequestError(f"{name} = {value}. Expected: a percentage")
        return found

    def nothing(self) -> Values:
        return {}


_ALL = 100 + 1e-3  # per cent, as they may be rounded


def _values(reply: Reply, accepted: Collection[str]) -> Values:
    """A number for each name: a list that is longer would give other clients this one's numbers."""
    found = {name: list(values) for name, values in reply.said.values.items()}
    for name, values in found.items():
        if name not in accepted or len(values) != 1:
            raise RequestError(f"{name!r} has {len(values)} values. Expected: 1 of {', '.join(sorted(accepted))}")
    return found


class _OfModel(_Plain):
    """The base of errands about one model that is everybody's."""

    kind: str
    reply: str

    def __init__(self, job: Job, book: Book, model: Tensors) -> None:
        self.job, self.book = job, book
        self.sent = {name: t for name, t in model.items() if t is not job.model[name]}
        self._known = _Known({name: t for name, t in model.items() if name not in self.sent})
        self.base, _ = self._known.digests()

    def letter(self, client: int) -> Letter:
        tensors = {f"model/{name}": tensor for name, tensor in self.sent.items()}
        return Letter(self.book.question(self.kind, client, base=self.base), tensors)

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self._known.by_digest()


class _Sums(_OfModel):
    kind = reply = "sums"

    def result(self, client: int, reply: Reply) -> Tensors:
        classes, features = self.job.roster.classes, self.job.net.body.features
        wanted = {"total": (torch.float32, (classes, features)), "count": (torch.float32, (classes,))}
        check_schema("class sums", reply.tensors, wanted)
        count, samples = reply.tensors["count"].double(), int(self.job.roster.sizes[client])
        if not bool(all_finite(reply.tensors.values())) or bool((count < 0).any()) or float(count.sum()) != samples:
            raise RequestError(f"its class sums are not those of {samples} samples")
        return {name: tensor[None] for name, tensor in reply.tensors.items()}

    def nothing(self) -> None:
        return None


class _Pooled(_OfModel):
    kind, reply = "pooled", "values"

    def __init__(self, job: Job, book: Book, model: Tensors, test_samples: Callable[[int], int]) -> None:
        super().__init__(job, book, model)
        self.test_samples = test_samples

    def result(self, client: int, reply: Reply) -> Values:
        found, samples = _values(reply, ("right", "of")), self.test_samples(client)
        ((right,), (of,)) = (found.get(name, [math.nan]) for name in ("right", "of"))
        if not (of == samples and 0 <= right <= of):
            raise RequestError(f"it has {right} of {of} right. Expected: a number of {samples} test samples")
        return found

    def nothing(self) -> Values:
        return {}
