"""Translates the engine's work into requests to clients, and checks their replies.

Each class that implements `RemoteCall` is one kind of request: it builds the message for a client, checks the
reply, and returns the result that the engine yields. `remote_call_of` selects it by the type of the work.
Nothing here depends on a method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from torso.errors import RequestError
from torso.federation.participation_log import ParticipationLog
from torso.federation.protocol import Reply, Request, digest, part_tensors
from torso.learn.stacked import all_finite
from torso.measure.evaluate import MeasureWork, PooledMeasureWork, Values
from torso.methods.starts import class_sums_declared
from torso.nets import Tensors
from torso.runs.evaluation import LastVisit
from torso.runs.exchange import ClassSums
from torso.runs.job import Job
from torso.runs.messages import Message, Sent, Told, check_schema
from torso.runs.uploads import UploadTerms
from torso.runs.visit import Visit

_MOST_PERCENT = 100 + 1e-3  # a percentage may be rounded up


class RemoteCall(Protocol):
    """One kind of request to clients: how it is built, and what its replies mean."""

    reply: str  # the kind of the expected reply

    def request(self, client: int) -> Request:
        """The request for one client, without tensors that the client should have already."""
        ...

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        """The tensors that are left out of requests and that a client may ask for: digest → (part, tensors)."""
        ...

    def result(self, client: int, reply: Reply) -> Any:
        """The result of the work, from a reply; RequestError if the reply is wrong."""
        ...

    def nothing(self) -> Any:
        """The result for a client that has not answered; None: it is left out."""
        ...

    def refused(self, client: int, kind: str) -> Any:
        """The result for a client whose reply is not used; `kind`: what is wrong with it (runs/uploads.py)."""
        ...


def remote_call_of(work: Any, job: Job, book: ParticipationLog, test_samples: Callable[[int], int]) -> RemoteCall:
    """The kind of request for a piece of work. `test_samples`: client → number of test samples in its description."""
    if isinstance(work, Visit):
        return _TrainCall(job, book, work.told)
    if isinstance(work, ClassSums):
        return _ClassSumsCall(job, book, work.model)
    if isinstance(work, MeasureWork) and isinstance(work.how.visit, LastVisit):
        return _MeasureCall(job, book, work.how.visit, work.names)
    if isinstance(work, PooledMeasureWork):
        return _PooledCall(job, book, work.model, test_samples)
    raise RequestError(
        f"{type(work).__name__} is work that clients of a real federation are not asked for: it would take more "
        "than messages. Accepted there: rounds, accuracies, class sums"
    )


@dataclass(frozen=True)
class _SharedTensors:
    """Tensors that a client should have already: requests have only their digests."""

    base: Tensors  # of the model, those that do not travel
    origin: Tensors = field(default_factory=dict)  # the model that clients' own models start from

    @classmethod
    def of(cls, told: Told) -> _SharedTensors:
        return cls({name: t for name, t in told.model.items() if name not in set(told.travels)}, dict(told.origin))

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digests by part; cached, since they are computed over whole models."""
        return {"base": digest(self.base), "origin": digest(self.origin)}

    def by_digest(self) -> dict[str, tuple[str, Tensors]]:
        """Digest → (name of the part, its tensors)."""
        return {self.digests[part]: (part, getattr(self, part)) for part in ("base", "origin")}


class _LeaveOut:
    """The base of those that leave out clients without a usable reply."""

    def nothing(self) -> Any:
        return None

    def refused(self, client: int, kind: str) -> Any:
        return self.nothing()


class _WithTold(_LeaveOut):
    """The base of those whose requests have a `Told`: everything that a visit starts from."""

    kind: str

    def __init__(self, job: Job, book: ParticipationLog, told: Told) -> None:
        self.job, self.book, self.told = job, book, told
        self._shared = _SharedTensors.of(told)

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self._shared.by_digest()

    def _told(self, client: int, round: int, shown: Tensors, **more: Any) -> Request:
        """The request. `shown`: tensors of the reported model, if they differ from those of `told`."""
        message = self.told.message(client)
        header = self.book.header(
            self.kind, client, round=round, numbers=message.numbers, **self._shared.digests, **more
        )
        return Request(header, {**message.tensors, **part_tensors("shown", shown)})


class _TrainCall(_WithTold):
    """Asks a client to train in a round. The result is its upload."""

    kind = "told"
    reply = "sent"

    def request(self, client: int) -> Request:
        return self._told(client, self.told.round, {})

    @cached_property
    def terms(self) -> UploadTerms:
        sizes = dict(enumerate(self.job.roster.sizes.tolist()))
        return UploadTerms.of(self.job.stage(self.told.round), self.told, sizes)

    def result(self, client: int, reply: Reply) -> Sent:
        if reply.header.numbers is None:
            raise RequestError("it has no numbers. Expected: those of a message 'sent'")
        return self.terms.checked(Message(reply.header.numbers, reply.tensors), client)

    def refused(self, client: int, kind: str) -> Sent:
        return Sent.nothing(self.told.round, {client: kind})


class _AfterRoundCall(_WithTold):
    """The base of those about the models after some round; a request has what one more visit would start from."""

    def __init__(self, job: Job, book: ParticipationLog, last: LastVisit) -> None:
        super().__init__(job, book, last.told)
        self.round = last.state.round
        model = last.state.reported.model
        self.shown = {name: tensor for name, tensor in model.items() if tensor is not self.told.model[name]}

    def request(self, client: int) -> Request:
        return self._told(client, self.round, self.shown)


class FinishCall(_AfterRoundCall):
    """Asks a client to make and keep its own model, at the end of the run. The result is whether it has done so."""

    kind = "finish"
    reply = "done"

    def result(self, client: int, reply: Reply) -> bool:
        return True

    def nothing(self) -> bool:
        return False


class _MeasureCall(_AfterRoundCall):
    """Asks a client to measure its models. The result is its values by name; {} for a client without a reply."""

    kind = "exam"
    reply = "values"

    def __init__(self, job: Job, book: ParticipationLog, last: LastVisit, names: tuple[str, ...]) -> None:
        super().__init__(job, book, last)
        self.names = names

    def request(self, client: int) -> Request:
        return self._told(client, self.round, self.shown, names=self.names)

    def result(self, client: int, reply: Reply) -> Values:
        sweep = self.job.config.personalize.sweep
        accepted = {*self.names, *(f"{name}@{epochs}" for name in self.names for epochs in sweep)}
        found = _values(reply, accepted)
        for name, (value,) in found.items():
            if not (math.isnan(value) or 0 <= value <= _MOST_PERCENT):  # NaN: the client has no test data
                raise RequestError(f"{name} = {value}. Expected: a percentage")
        return found

    def nothing(self) -> Values:
        return {}


def _values(reply: Reply, accepted: Collection[str]) -> Values:
    """The values of a reply, exactly one for each name: more would be assigned to other clients."""
    found = {name: list(values) for name, values in reply.header.values.items()}
    for name, values in found.items():
        if name not in accepted or len(values) != 1:
            raise RequestError(f"{name!r} has {len(values)} values. Expected: 1 of {', '.join(sorted(accepted))}")
    return found


class _WithModel(_LeaveOut):
    """The base of those whose requests have one model, the same for all clients."""

    kind: str
    reply: str

    def __init__(self, job: Job, book: ParticipationLog, model: Tensors) -> None:
        self.job, self.book = job, book
        self.sent = {name: t for name, t in model.items() if t is not job.model[name]}
        self._shared = _SharedTensors({name: t for name, t in model.items() if name not in self.sent})

    def request(self, client: int) -> Request:
        tensors = {f"model/{name}": tensor for name, tensor in self.sent.items()}
        return Request(self.book.header(self.kind, client, base=self._shared.digests["base"]), tensors)

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self._shared.by_digest()


class _ClassSumsCall(_WithModel):
    """Asks a client for the sums of its features by class."""

    kind = "sums"
    reply = "sums"

    def result(self, client: int, reply: Reply) -> Tensors:
        declared = class_sums_declared(self.job.net, self.job.roster.classes)
        check_schema("class sums", reply.tensors, {n: (torch.float32, each.shape) for n, each in declared.items()})
        count = reply.tensors["count"].double()
        samples = int(self.job.roster.sizes[client])
        if not bool(all_finite(reply.tensors.values())) or bool((count < 0).any()) or float(count.sum()) != samples:
            raise RequestError(f"its class sums are not those of {samples} samples")
        return {name: tensor[None] for name, tensor in reply.tensors.items()}


class _PooledCall(_WithModel):
    """Asks a client how many of its test samples the generic model classifies correctly."""

    kind = "pooled"
    reply = "values"

    def __init__(self, job: Job, book: ParticipationLog, model: Tensors, test_samples: Callable[[int], int]) -> None:
        super().__init__(job, book, model)
        self.test_samples = test_samples

    def result(self, client: int, reply: Reply) -> Values:
        found = _values(reply, ("right", "of"))
        samples = self.test_samples(client)
        (right,) = found.get("right", [math.nan])
        (of,) = found.get("of", [math.nan])
        if not (of == samples and 0 <= right <= of):
            raise RequestError(f"it has {right} of {of} right. Expected: a number of {samples} test samples")
        return found

    def nothing(self) -> Values:
        return {}
