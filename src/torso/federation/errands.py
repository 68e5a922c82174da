"""What a piece of work is between server and client: a letter that asks for it, and what a reply must be to count.

Nothing of a method is written here. Which letter stands for which work: `errand_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from torso.errors import RequestError
from torso.federation.book import Book
from torso.federation.letters import Letter, Reply, beside, digest
from torso.learn.stacked import all_finite
from torso.measure.evaluate import Exam, PooledExam, Values
from torso.methods.starts import class_sums_declared
from torso.nets import Tensors
from torso.runs.evaluation import LastVisit
from torso.runs.exchange import ClassSums
from torso.runs.job import Job
from torso.runs.messages import Message, Sent, Told, check_schema
from torso.runs.uploads import Terms
from torso.runs.visit import Visit

_ALL = 100 + 1e-3  # per cent, as they may be rounded


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

    def refused(self, client: int, kind: str) -> Any:
        """What stands for a client whose answer is not used; `kind`: what is wrong with it (runs/uploads.py)."""
        ...


def errand_of(work: Any, job: Job, book: Book, test_samples: Callable[[int], int]) -> Errand:
    """`test_samples`: how many a client has said that it has."""
    if isinstance(work, Visit):
        return _Visits(job, book, work.told)
    if isinstance(work, ClassSums):
        return _Sums(job, book, work.model)
    if isinstance(work, Exam) and isinstance(work.how.visit, LastVisit):
        return _Exams(job, book, work.how.visit, work.names)
    if isinstance(work, PooledExam):
        return _Pooled(job, book, work.model, test_samples)
    raise RequestError(
        f"{type(work).__name__} is work that clients of a real federation are not asked for: it would take more "
        "than messages. Accepted there: rounds, accuracies, class sums"
    )


@dataclass(frozen=True)
class _Known:
    """The tensors that a client should have already."""

    base: Tensors
    origin: Tensors = field(default_factory=dict)

    @classmethod
    def beside(cls, told: Told) -> _Known:
        return cls({name: t for name, t in told.model.items() if name not in set(told.travels)}, dict(told.origin))

    @cached_property
    def digests(self) -> dict[str, str]:
        """Worked out once: they are of whole models."""
        return {"base": digest(self.base), "origin": digest(self.origin)}

    def by_digest(self) -> dict[str, tuple[str, Tensors]]:
        """The parts that a client may ask for, by their digest: name and tensors."""
        return {self.digests[part]: (part, getattr(self, part)) for part in ("base", "origin")}


class _Plain:
    """The base of errands for which an answer that is not used is as good as none."""

    def nothing(self) -> Any:
        return None

    def refused(self, client: int, kind: str) -> Any:
        return self.nothing()


class _Telling(_Plain):
    """The base of errands that tell what a visit begins with."""

    kind: str

    def __init__(self, job: Job, book: Book, told: Told) -> None:
        self.job, self.book, self.told = job, book, told
        self._known = _Known.beside(told)

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self._known.by_digest()

    def _told(self, client: int, round: int, shown: Tensors, **more: Any) -> Letter:
        """`shown`: tensors that accuracy is reported on, where those are others than what is told."""
        message = self.told.message(client)
        question = self.book.question(
            self.kind, client, round=round, numbers=message.numbers, **self._known.digests, **more
        )
        return Letter(question, {**message.tensors, **beside("shown", shown)})


class _Visits(_Telling):
    kind, reply = "told", "sent"

    def letter(self, client: int) -> Letter:
        return self._told(client, self.told.round, {})

    @cached_property
    def terms(self) -> Terms:
        sizes = dict(enumerate(self.job.roster.sizes.tolist()))
        return Terms.of(self.job.stage(self.told.round), self.told, sizes)

    def result(self, client: int, reply: Reply) -> Sent:
        if reply.said.numbers is None:
            raise RequestError("it has no numbers. Expected: those of a message 'sent'")
        return self.terms.checked(Message(reply.said.numbers, reply.tensors), client)

    def refused(self, client: int, kind: str) -> Sent:
        return Sent.nothing(self.told.round, {client: kind})


class _Standing(_Telling):
    """The base of errands about models as they are after some round: what one more visit would begin with."""

    def __init__(self, job: Job, book: Book, last: LastVisit) -> None:
        super().__init__(job, book, last.told)
        self.round, model = last.state.round, last.state.reported.model
        self.shown = {name: tensor for name, tensor in model.items() if tensor is not self.told.model[name]}

    def letter(self, client: int) -> Letter:
        return self._told(client, self.round, self.shown)


class Finishing(_Standing):
    """The run is over: a client makes its own model, and keeps it. The result is whether it has."""

    kind, reply = "finish", "done"

    def result(self, client: int, reply: Reply) -> bool:
        return True

    def nothing(self) -> bool:
        return False


class _Exams(_Standing):
    kind, reply = "exam", "values"

    def __init__(self, job: Job, book: Book, last: LastVisit, names: tuple[str, ...]) -> None:
        super().__init__(job, book, last)
        self.names = names

    def letter(self, client: int) -> Letter:
        return self._told(client, self.round, self.shown, names=self.names)

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

    def letter(self, client: int) -> Letter:
        tensors = {f"model/{name}": tensor for name, tensor in self.sent.items()}
        return Letter(self.book.question(self.kind, client, base=self._known.digests["base"]), tensors)

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self._known.by_digest()


class _Sums(_OfModel):
    kind = reply = "sums"

    def result(self, client: int, reply: Reply) -> Tensors:
        declared = class_sums_declared(self.job.net, self.job.roster.classes)
        check_schema("class sums", reply.tensors, {n: (torch.float32, each.shape) for n, each in declared.items()})
        count, samples = reply.tensors["count"].double(), int(self.job.roster.sizes[client])
        if not bool(all_finite(reply.tensors.values())) or bool((count < 0).any()) or float(count.sum()) != samples:
            raise RequestError(f"its class sums are not those of {samples} samples")
        return {name: tensor[None] for name, tensor in reply.tensors.items()}


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
