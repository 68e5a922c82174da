"""Whether an upload may be used: the same check in every engine, and for the messages of a real federation.

| kind          | what is wrong                                                                                     |
|---------------|---------------------------------------------------------------------------------------------------|
| not finite    | a number is infinite or NaN: of the upload, of the loss, of what the client keeps, or its length  |
| wrong form    | a tensor is missing, is one too many, or has another shape or dtype                               |
| wrong numbers | it is of another round or client, or of another number of samples than the client has declared;   |
|               | a statistic has numbers that it cannot have: a count that is negative, say                        |
| unreadable    | its bytes are no message (real federation only)                                                   |

A client whose upload is not used has not been heard: it holds what it held before the round (faults.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torso.errors import RequestError
from torso.learn.stacked import finite_rows, lengths
from torso.nets import Tensors
from torso.runs.cost import up
from torso.runs.faults import NOT_FINITE, WRONG_FORM, WRONG_NUMBERS
from torso.runs.messages import Message, Schema, Sent, Told, unlike
from torso.runs.stage import Stage
from torso.server.robust import less
from torso.server.statistics import Declared


class Refused(RequestError):
    """An upload that is not used; `kind` as in the table above."""

    def __init__(self, kind: str, words: str) -> None:
        self.kind = kind
        super().__init__(words)


@dataclass(frozen=True)
class Terms:
    """What the uploads of a round must be."""

    round: int
    forms: Mapping[int, Schema]  # by how many models of others a client was offered: it may send a number for each
    offered: Mapping[int, int]  # how many those were, where it was offered some
    samples: Mapping[int, int]  # as clients have declared them; empty: nobody has
    declared: Declared = field(default_factory=dict)  # the statistics

    @classmethod
    def of(cls, stage: Stage, told: Told, samples: Mapping[int, int]) -> Terms:
        forms = {0: up(stage, told, -1)} | {len(others): up(stage, told, k) for k, others in told.offers.items()}
        return cls(
            told.round,
            forms,
            {client: len(others) for client, others in told.offers.items()},
            samples,
            stage.declared(),
        )

    def misfits(self, sent: Sent) -> dict[int, Refused]:
        """Which of the clients sent what does not fit, and why. Nothing is read from the device."""
        form = sent.schema
        if not self.offered and sent.round == self.round and form == self.forms[0] and self._declared(sent):
            return {}
        found = {
            client: self._misfit(client, form, (sent.round, client, count))
            for client, count in zip(sent.clients, sent.samples, strict=True)
        }
        return {client: refused for client, refused in found.items() if refused is not None}

    def _declared(self, sent: Sent) -> bool:
        """Whether all of them have as many samples as they have declared, where they have."""
        return not self.samples or tuple(map(self.samples.get, sent.clients)) == sent.samples

    def checked(self, message: Message, client: int) -> Sent:
        """What one client's message says; `Refused` where it may not be used."""
        numbers = message.numbers
        if refused := self._misfit(client, message.schema, (numbers.round, numbers.client, numbers.samples)):
            raise refused
        sent = Sent.received(message)
        if not bool(fine(sent).all()):
            raise Refused(NOT_FINITE, "its loss or its weights are not finite")
        if not bool(self.sound(sent).all()):
            raise Refused(
                WRONG_NUMBERS, f"its statistics have numbers that are none of theirs. Expected: {self._kinds}"
            )
        return sent

    def sound(self, sent: Sent) -> Tensor:
        return sound(sent.said, self.declared, sent.loss)

    @property
    def _kinds(self) -> str:
        kinds = {name: each.numbers for name, each in self.declared.items() if each.numbers != "any"}
        words = {"count": "whole and not negative"}
        return "; ".join(f"{name} {words.get(kind, kind)}" for name, kind in kinds.items())

    def _misfit(self, client: int, form: Schema, numbers: tuple[int, int, int]) -> Refused | None:
        wanted = self.forms[self.offered.get(client, 0)]
        if form != wanted:
            return Refused(WRONG_FORM, f"the upload of client {client}: {unlike(form, wanted)}")
        due = (self.round, client, self.samples.get(client, numbers[2]))
        if numbers != due:
            said, expected = ("round {}, client {}, {} samples".format(*each) for each in (numbers, due))
            return Refused(WRONG_NUMBERS, f"it is of {said}. Expected: {expected}")
        return None


def fine(sent: Sent, measured: Tensors | None = None) -> Tensor:
    """Whose numbers are finite: truths [G] on the device, which nobody has waited for yet.

    `measured`: parameters whose distance from what was sent is going to be used; this must be finite too."""
    numbers = (sent.loss, *sent.model.values(), *sent.drift.values(), *sent.said.values())
    found = sent.finite & finite_rows(numbers, sent.loss)
    if measured:
        found = found & lengths(less({name: sent.model[name] for name in measured}, measured)).isfinite()
    return found


def sound(said: Tensors, declared: Declared, like: Tensor) -> Tensor:
    """Whose statistics have numbers that they can have: truths [G] on the device. What is not finite is not judged."""
    found = torch.ones_like(like, dtype=torch.bool)
    for name, tensor in said.items():
        kind = declared[name].numbers
        if kind != "any":
            wrong = tensor < 0
            wrong = wrong | ((tensor != tensor.round()) & tensor.isfinite()) if kind == "count" else wrong
            found = found & ~wrong.reshape(len(tensor), -1).any(dim=1)
    return found
