"""The engine of a real federation with secure sums: the server sees no single upload."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from torso.engine import Work
from torso.engine.base import Sum
from torso.errors import RequestError, RunFailed
from torso.federation.participation_log import ParticipationLog
from torso.federation.protocol import Reply, Request
from torso.federation.remote_calls import RemoteCall, remote_call_of
from torso.federation.remote_engine import RemoteEngine
from torso.federation.secure.contents import NOT_FINITE, ClassSumContents, RoundContents, scale_of
from torso.federation.secure.crypto import Vector, public_key
from torso.federation.secure.sum_messages import Keys, SumReply, SumRequest
from torso.federation.secure.sum_server import SumServer
from torso.federation.secure.terms import SharingParameters
from torso.federation.secure.vector import CLIPPED, VectorLayout, from_int32
from torso.nets import Tensors
from torso.personal.store import Store
from torso.runs.aggregate import Aggregate
from torso.runs.exchange import ClassSums
from torso.runs.messages import check_schema
from torso.runs.visit import Visit

T = TypeVar("T")
S = TypeVar("S", bound=Sum)


class SecureRemoteEngine(RemoteEngine):
    """An engine that computes rounds and class sums as secure sums. Accuracies are requested without them."""

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S:
        """Add the mean of a round to `total`; nothing, if too few clients have completed the protocol."""
        at_clients: Any = work
        if not isinstance(at_clients, Visit) or not isinstance(total, Aggregate):
            raise RequestError(f"{type(work).__name__} is no work for a secure sum. Accepted: rounds, class sums")
        contents, scale = RoundContents(self.job, at_clients.told), scale_of(self.job.roster)
        call = self._masked(work, contents.form, scale)
        found = self._secure_sum(call, clients)
        if clients and len(call.diverged) == len(clients):  # as in a simulation: the run ends if all diverge
            raise RunFailed(f"non-finite loss in round {at_clients.told.round}, client {min(call.diverged)}")
        if found is not None:
            included, sums = found
            total.take_mean(contents.mean(sums, included, self.job.roster, scale))
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
            _, sums = found
            result: Any = {name: tensor[None] for name, tensor in contents.sums(sums, scale).items()}
            yield result

    def _masked(self, work: Work[Any], form: VectorLayout, scale: int) -> _MaskedCall:
        return _MaskedCall(remote_call_of(work, self.job, self.book, self.connections.test_samples), form, scale)

    def _secure_sum(self, call: _MaskedCall, clients: Sequence[int]) -> tuple[list[int], Tensors] | None:
        """The clients that are in the sum, in the order of `clients`, and the sums; None if the sum was not opened."""
        try:
            terms = SharingParameters.of(self.job.config.run.flower.secure, len(clients))
            gathering = SumServer(terms, clients)
            opened = self._stages(gathering, call, clients)
            sums = call.form.decode(opened, len(gathering.sent))
        except RequestError as error:
            self._notes.append(f"the secure sum was not opened: {error}")
            return None
        if clipped := int(sums[CLIPPED]):
            limit = self.job.config.run.flower.secure.clip
            self._notes.append(
                f"{clipped} numbers were beyond their range and were cut there (run.flower.secure.clip = {limit:g})"
            )
        return [client for client in clients if client in gathering.sent], sums

    def _stages(self, gathering: SumServer, call: _MaskedCall, clients: Sequence[int]) -> Vector:
        """Play the four stages. Returns the sum without masks; RequestError if too few clients are left."""
        session = _Session(self.book, uuid.uuid4().hex, gathering, len(clients))
        self._ask_all(_KeysCall(session), clients)
        self._check(gathering.enough(gathering.keys), gathering.keys, "sent keys")
        self._ask_all(_SharesCall(session), list(gathering.keys))
        self._check(gathering.enough(gathering.written), gathering.written, "shared secrets")
        call.session = session
        self._ask_all(call, list(gathering.written))
        wanted = min(self.job.config.train.min_clients, len(clients))
        enough = gathering.enough(gathering.sent, of=gathering.written) and len(gathering.sent) >= wanted
        self._check(enough, gathering.sent, "sent a vector")
        return gathering.opened(self._ask_all(_UnmaskCall(session), list(gathering.sent)))

    def _ask_all(self, call: RemoteCall, clients: Sequence[int]) -> dict[int, Any]:
        return {client: found for client, found in self.ask(call, clients) if found is not None}

    def _check(self, enough: bool, clients: Sequence[int] | Mapping[int, Any], did: str) -> None:
        if not enough:
            raise RequestError(f"{len(clients)} clients {did}, too few")


class _Session:
    """Builds the requests of one secure sum, which all have its id."""

    def __init__(self, book: ParticipationLog, session: str, gathering: SumServer, participants: int) -> None:
        self.book, self.id, self.gathering, self.participants = book, session, gathering, participants

    def note(self, **more: Any) -> SumRequest:
        """The part of a header that belongs to the sum."""
        return SumRequest(session=self.id, **more)

    def request(self, kind: str, client: int, **more: Any) -> Request:
        return Request(self.book.header(kind, client, sealing=self.note(**more)))


class _SecureCall:
    """The base of requests of a secure sum. A client without a usable reply counts as having left."""

    def nothing(self) -> None:
        return None

    def refused(self, client: int, kind: str) -> None:
        return None


class _StageCall(_SecureCall):
    """The base of the stages that have no tensors."""

    reply = "shares"

    def __init__(self, session: _Session) -> None:
        self.session, self.gathering = session, session.gathering

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return {}


class _KeysCall(_StageCall):
    """Asks a client for its public keys."""

    reply = "keys"

    def request(self, client: int) -> Request:
        return self.session.request("keys", client, participants=self.session.participants)

    def result(self, client: int, reply: Reply) -> Keys:
        keys = _sealed(reply).keys
        if keys is None or any(key in pair for pair in self.gathering.keys.values() for key in keys):
            raise RequestError("its public keys are missing or are not unique. Expected: two new keys")
        for key in keys:  # checked here: the neighbours would fail with a bad key, and not know whose it is
            public_key(key)
        self.gathering.keys[client] = keys
        return keys


class _SharesCall(_StageCall):
    """Sends a client its neighbours' keys, and asks for encrypted shares of its secrets."""

    def request(self, client: int) -> Request:
        return self.session.request("shares", client, keys=self.gathering.keys_for(client))

    def result(self, client: int, reply: Reply) -> bool:
        self.gathering.take_shares(client, _sealed(reply).shares)
        return True


class _UnmaskCall(_StageCall):
    """Asks a client for the shares that remove the masks from the sum."""

    def request(self, client: int) -> Request:
        active, dead = self.gathering.to_unmask(client)
        return self.session.request("unmask", client, active=active, dead=dead)

    def result(self, client: int, reply: Reply) -> Mapping[int, bytes]:
        shares = _sealed(reply).shares
        active, dead = self.gathering.to_unmask(client)
        wanted = {*active, *dead}
        if shares.keys() != wanted:
            raise RequestError(f"it sent shares of {sorted(shares)}. Expected: {sorted(wanted)}")
        return shares


class _MaskedCall(_SecureCall):
    """Another kind of request in a secure sum: with the shares of the neighbours, and a masked vector as reply."""

    reply = "masked"
    session: _Session  # set before the first request

    def __init__(self, inner: RemoteCall, form: VectorLayout, scale: int) -> None:
        self.inner, self.form, self.scale = inner, form, scale
        self.diverged: list[int] = []  # clients with NaN or infinite values

    def request(self, client: int) -> Request:
        request = self.inner.request(client)
        note = self.session.note(shares=self.session.gathering.shares_for(client), scale=self.scale)
        return replace(request, header=request.header.model_copy(update={"sealing": note}))

    def known(self) -> Mapping[str, tuple[str, Tensors]]:
        return self.inner.known()

    def result(self, client: int, reply: Reply) -> bool:
        if reply.header.numbers is not None and not reply.header.numbers.finite:
            self.diverged.append(client)
            raise RequestError(NOT_FINITE)
        check_schema("the masked vector", reply.tensors, {"vector": (torch.int32, (self.form.size,))})
        self.session.gathering.take_vector(client, from_int32(reply.tensors["vector"]))
        return True


def _sealed(reply: Reply) -> SumReply:
    if reply.header.sealed is None:
        raise RequestError("it says nothing of the secure sum")
    return reply.header.sealed
