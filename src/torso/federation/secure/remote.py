"""The engine of a real federation whose server sees sums only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from torso.engine import Work
from torso.engine.base import Sum
from torso.errors import RequestError, RunFailed
from torso.federation.book import Book
from torso.federation.errands import Errand, errand_of
from torso.federation.letters import Letter, Reply
from torso.federation.remote import Remote
from torso.federation.secure.contents import NOT_FINITE, ClassSumContents, RoundContents, scale_of
from torso.federation.secure.crypto import Vector, public_key
from torso.federation.secure.gathering import Gathering
from torso.federation.secure.notes import Keys, Sealed, Sealing
from torso.federation.secure.terms import Terms
from torso.federation.secure.vector import CLIPPED, Form, off_the_wire
from torso.nets import Tensors
from torso.personal.store import Store
from torso.runs.aggregate import Aggregate
from torso.runs.exchange import ClassSums
from torso.runs.messages import check_schema
from torso.runs.visit import Visit

T = TypeVar("T")
S = TypeVar("S", bound=Sum)


class SecureRemote(Remote):
    """Rounds and class sums are secure sums; accuracies are asked for as in any federation."""

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S:
        """A round. Nothing is taken in where too few have kept to the protocol until its end."""
        at_clients: Any = work
        if not isinstance(at_clients, Visit) or not isinstance(total, Aggregate):
            raise RequestError(f"{type(work).__name__} is no work for a secure sum. Accepted: rounds, class sums")
        contents, scale = RoundContents(self.job, at_clients.told), scale_of(self.job.roster)
        errand = self._masked(work, contents.form, scale)
        found = self._secure_sum(errand, clients)
        if clients and len(errand.diverged) == len(clients):  # one is no reason to end, all are: as in a simulation
            raise RunFailed(f"non-finite loss in round {at_clients.told.round}, client {min(errand.diverged)}")
        if found is not None:
            heard, sums = found
            total.take_mean(contents.mean(sums, heard, self.job.roster, scale))
        return total

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        at_clients: Any = work
        if isinstance(at_clients, Visit):
            raise RequestError("single uploads are not asked for where run.flower.secure.kind = 'secagg+'")
        if not isinstance(at_clients, ClassSums):
            yield from super().map(work, clients, store)
            return
        contents, scale = ClassSumContents(self.job), scale_of(self.job.roster)
        found = self._secure_sum(self._masked(work, contents.form, scale), clients)
        if found is not None:
            whole: Any = {name: tensor[None] for name, tensor in contents.sums(found[1], scale).items()}
            yield whole

    def _masked(self, work: Work[Any], form: Form, scale: int) -> _Masked:
        return _Masked(errand_of(work, self.job, self.book, self.seats.test_samples), form, scale)

    def _secure_sum(self, errand: _Masked, clients: Sequence[int]) -> tuple[list[int], Tensors] | None:
        """Who is in the sum, in the order of `clients`, and the sums; None: it was not opened, and nobody's upload is
        known."""
        try:
            terms = Terms.of(self.job.config.run.flower.secure, len(clients))
            gathering = Gathering(terms, clients)
            opened = self._stages(gathering, errand, clients)
            sums = errand.form.decode(opened, len(gathering.sent))
        except RequestError as error:
            self._notes.append(f"the secure sum was not opened: {error}")
            return None
        if clipped := int(sums[CLIPPED]):
            limit = self.job.config.run.flower.secure.clip
            self._notes.append(
                f"{clipped} numbers were beyond their range and were cut there (run.flower.secure.clip = {limit:g})"
            )
        return [client for client in clients if client in gathering.sent], sums

    def _stages(self, gathering: Gathering, errand: _Masked, clients: Sequence[int]) -> Vector:
        letters = _Letters(self.book, uuid.uuid4().hex, gathering, len(clients))
        self._ask_all(_KeysErrand(letters), clients)
        self._check(gathering.enough(gathering.keys), gathering.keys, "sent keys")
        self._ask_all(_SharesErrand(letters), list(gathering.keys))
        self._check(gathering.enough(gathering.written), gathering.written, "shared secrets")
        errand.letters = letters
        self._ask_all(errand, list(gathering.written))
        wanted = min(self.job.config.train.min_clients, len(clients))
        enough = gathering.enough(gathering.sent, of=gathering.written) and len(gathering.sent) >= wanted
        self._check(enough, gathering.sent, "sent a vector")
        return gathering.opened(self._ask_all(_UnmaskErrand(letters), list(gathering.sent)))

    def _ask_all(self, errand: Errand, clients: Sequence[int]) -> dict[int, Any]:
        return {client: found for client, found in self.ask(errand, clients) if found is not None}

    def _check(self, enough: bool, clients: Sequence[int] | Mapping[int, Any], did: str) -> None:
        if not enough:
            raise RequestError(f"{len(clients)} clients {did}, too few")


class _Letters:
    """The letters of one secure sum, which all have its number."""

    def __init__(self, book: Book, session: str, gathering: Gathering, participants: int) -> None:
        self.book, self.session, self.gathering, self.participants = book, session, gathering, participants

    def note(self, **more: Any) -> Sealing:
        return Sealing(session=self.session, **more)

    def letter(self, kind: str, client: int, **more: Any) -> Letter:
        return Letter(self.book.question(kind, client, sealing=self.note(**more)))


class _Step:
    """The base of errands of a secure sum: who has not answered as it should has left."""

    def nothing(self) -> None:
        return None

    def refused(self, client: int, kind: str) -> None:
        return None

    def close(self, clients: int) -> None: ...


class _Stage(_Step):
    """The base of stages that have no tensors."""

    reply = "shares"

    def __init__(self, letters: _Letters) -> None:
        self.letters, self.gathering = letters, letters.gathering

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return {}


class _KeysErrand(_Stage):
    reply = "keys"

    def letter(self, client: int) -> Letter:
        return self.letters.letter("keys", client, participants=self.letters.participants)

    def result(self, client: int, reply: Reply) -> Keys:
        keys = _sealed(reply).keys
        if keys is None or any(key in pair for pair in self.gathering.keys.values() for key in keys):
            raise RequestError("it has no keys of its own. Expected: two that nobody else has")
        for key in keys:  # before others are sent it: they could not go on, and nobody would know because of whom
            public_key(key)
        self.gathering.keys[client] = keys
        return keys


class _SharesErrand(_Stage):
    def letter(self, client: int) -> Letter:
        return self.letters.letter("shares", client, keys=self.gathering.keys_for(client))

    def result(self, client: int, reply: Reply) -> bool:
        self.gathering.take_shares(client, _sealed(reply).shares)
        return True


class _UnmaskErrand(_Stage):
    def letter(self, client: int) -> Letter:
        active, dead = self.gathering.to_unmask(client)
        return self.letters.letter("unmask", client, active=active, dead=dead)

    def result(self, client: int, reply: Reply) -> Mapping[int, bytes]:
        shares = _sealed(reply).shares
        wanted = {other for some in self.gathering.to_unmask(client) for other in some}
        if shares.keys() != wanted:
            raise RequestError(f"it sent shares of {sorted(shares)}. Expected: {sorted(wanted)}")
        return shares


class _Masked(_Step):
    """What clients are asked in the open, with what a secure sum adds to it; replies are masked vectors."""

    reply = "masked"
    letters: _Letters

    def __init__(self, inner: Errand, form: Form, scale: int) -> None:
        self.inner, self.form, self.scale = inner, form, scale
        self.diverged: list[int] = []

    def letter(self, client: int) -> Letter:
        letter = self.inner.letter(client)
        note = self.letters.note(shares=self.letters.gathering.shares_for(client), scale=self.scale)
        return replace(letter, question=letter.question.model_copy(update={"sealing": note}))

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self.inner.known()

    def result(self, client: int, reply: Reply) -> bool:
        if reply.said.numbers is not None and not reply.said.numbers.finite:
            self.diverged.append(client)
            raise RequestError(NOT_FINITE)
        check_schema("the masked vector", reply.tensors, {"vector": (torch.int32, (self.form.size,))})
        self.letters.gathering.take_vector(client, off_the_wire(reply.tensors["vector"]))
        return True


def _sealed(reply: Reply) -> Sealed:
    if reply.said.sealed is None:
        raise RequestError("it says nothing of the secure sum")
    return reply.said.sealed
