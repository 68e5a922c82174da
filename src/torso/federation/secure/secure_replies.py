"""A client's replies in secure sums. If the agreed config asks for secure sums, uploads are sent in no other way."""

from __future__ import annotations

from collections.abc import Callable

from torso.errors import RequestError
from torso.federation.protocol import Reply, ReplyHeader, RequestHeader
from torso.federation.secure.contents import ClassSumContents, NotFinite, RoundContents
from torso.federation.secure.sum_client import SumClient
from torso.federation.secure.sum_messages import SumReply, SumRequest
from torso.federation.secure.terms import SharingParameters
from torso.federation.secure.vector import VectorLayout, to_int32
from torso.nets import Tensors
from torso.randomness import numpy_generator
from torso.runs.messages import Message, MessageNumbers, Told
from torso.runs.site import Site


class SecureReplies:
    """Answers the requests of a secure sum. It holds the secrets of one sum at a time, never in a file."""

    def __init__(self) -> None:
        self._party: SumClient | None = None

    def answer(self, site: Site, header: RequestHeader) -> Reply:
        """Answer a stage that has no tensors: keys, shares, unmask."""
        note = _note(header)
        if header.kind == "keys":
            terms = SharingParameters.of(site.job.config.run.flower.secure, note.participants)
            self._party = SumClient(site.client, note.session, terms)
            return Reply(ReplyHeader(kind="keys", sealed=SumReply(keys=self._party.public)))
        party = self._party_of(header)
        given = party.share(note.keys) if header.kind == "shares" else party.unmask(note.active, note.dead)
        return Reply(ReplyHeader(kind="shares", sealed=SumReply(shares=given)))

    def visit(self, site: Site, header: RequestHeader, told: Told, train: Callable[[], Message]) -> Reply:
        """Train in a round and reply with the masked upload. `train` returns the upload without a mask."""
        contents = RoundContents(site.job, told)
        scale = _note(header).scale
        return self._masked(site, header, contents.form, lambda: contents.values(train(), scale), told.round)

    def class_sums(self, site: Site, header: RequestHeader, sums: Callable[[], Tensors]) -> Reply:
        """Reply with the masked class sums. `sums` returns them without a mask."""
        contents = ClassSumContents(site.job)
        scale = _note(header).scale
        return self._masked(site, header, contents.form, lambda: contents.values(sums(), scale), 0)

    def _masked(
        self, site: Site, header: RequestHeader, form: VectorLayout, values: Callable[[], Tensors], round: int
    ) -> Reply:
        party = self._party_of(header)
        draw = numpy_generator(site.job.config.run.seed, "rounding", round, site.client)
        try:
            vector = party.mask(_note(header).shares, lambda: form.encode(values(), draw))
        except NotFinite:
            nothing = MessageNumbers(kind="sent", round=round, client=site.client, finite=False)
            return Reply(ReplyHeader(kind="masked", numbers=nothing))
        return Reply(ReplyHeader(kind="masked"), {"vector": to_int32(vector)})

    def _party_of(self, header: RequestHeader) -> SumClient:
        """The state of the sum that a request belongs to."""
        if self._party is None or self._party.session != _note(header).session:
            raise RequestError("it has no keys of this secure sum: it was started anew, or the sum was given up")
        return self._party


def _note(header: RequestHeader) -> SumRequest:
    if header.sealing is None:
        raise RequestError(
            f"a request {header.kind!r} would have it answer in the open, and this run was agreed with "
            "run.flower.secure.kind = 'secagg+'"
        )
    return header.sealing
