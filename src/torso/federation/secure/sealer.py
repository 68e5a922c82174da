"""A client's replies in secure sums. If the agreed config asks for secure sums, uploads are sent in no other way."""

from __future__ import annotations

from collections.abc import Callable

from torso.errors import RequestError
from torso.federation.letters import Question, Reply, Said
from torso.federation.secure.contents import ClassSumContents, NotFinite, RoundContents
from torso.federation.secure.notes import Sealed, Sealing
from torso.federation.secure.party import Party
from torso.federation.secure.terms import Terms
from torso.federation.secure.vector import Form, on_the_wire
from torso.nets import Tensors
from torso.randomness import numpy_generator
from torso.runs.messages import Message, MessageNumbers, Told
from torso.runs.site import Site


class Sealer:
    """Answers the requests of a secure sum. It holds the secrets of one sum at a time, never in a file."""

    def __init__(self) -> None:
        self._party: Party | None = None

    def answer(self, site: Site, question: Question) -> Reply:
        """Answer a stage that has no tensors: keys, shares, unmask."""
        note = _note(question)
        if question.kind == "keys":
            terms = Terms.of(site.job.config.run.flower.secure, note.participants)
            self._party = Party(site.client, note.session, terms)
            return Reply(Said(kind="keys", sealed=Sealed(keys=self._party.public)))
        party = self._party_of(question)
        given = party.share(note.keys) if question.kind == "shares" else party.unmask(note.active, note.dead)
        return Reply(Said(kind="shares", sealed=Sealed(shares=given)))

    def visit(self, site: Site, question: Question, told: Told, train: Callable[[], Message]) -> Reply:
        """Train in a round and reply with the masked upload. `train` returns the upload without a mask."""
        contents = RoundContents(site.job, told)
        scale = _note(question).scale
        return self._masked(site, question, contents.form, lambda: contents.values(train(), scale), told.round)

    def class_sums(self, site: Site, question: Question, sums: Callable[[], Tensors]) -> Reply:
        """Reply with the masked class sums. `sums` returns them without a mask."""
        contents = ClassSumContents(site.job)
        scale = _note(question).scale
        return self._masked(site, question, contents.form, lambda: contents.values(sums(), scale), 0)

    def _masked(self, site: Site, question: Question, form: Form, values: Callable[[], Tensors], round: int) -> Reply:
        party = self._party_of(question)
        draw = numpy_generator(site.job.config.run.seed, "rounding", round, site.client)
        try:
            vector = party.mask(_note(question).shares, lambda: form.encode(values(), draw))
        except NotFinite:
            nothing = MessageNumbers(kind="sent", round=round, client=site.client, finite=False)
            return Reply(Said(kind="masked", numbers=nothing))
        return Reply(Said(kind="masked"), {"vector": on_the_wire(vector)})

    def _party_of(self, question: Question) -> Party:
        """The state of the sum that a request belongs to."""
        if self._party is None or self._party.session != _note(question).session:
            raise RequestError("it has no keys of this secure sum: it was started anew, or the sum was given up")
        return self._party


def _note(question: Question) -> Sealing:
    if question.sealing is None:
        raise RequestError(
            f"a request {question.kind!r} would have it answer in the open, and this run was agreed with "
            "run.flower.secure.kind = 'secagg+'"
        )
    return question.sealing
