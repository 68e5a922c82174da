"""Checks of uploads: the same in every engine, and for the messages of a real federation.

| kind          | why an upload is not used                                                                         |
|---------------|---------------------------------------------------------------------------------------------------|
| not finite    | a value is infinite or NaN: of the upload, the loss, what the client keeps, or the upload's norm  |
| wrong form    | a tensor is missing, is one too many, or has another shape or dtype                               |
| wrong numbers | it is of another round or client, or of another number of samples than the client has declared;   |
|               | or a statistic has impossible values, for example a negative count                                |
| unreadable    | its bytes are no message (real federation only)                                                   |

A client whose upload is not used keeps the state that it had before the round (faults.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torso.errors import RequestError
from torso.learn.stacked import client_norms, finite_rows
from torso.nets import Tensors
from torso.runs.cost import upload_schema
from torso.runs.faults import NOT_FINITE, WRONG_FORM, WRONG_NUMBERS
from torso.runs.messages import Message, Schema, Sent, Told, schema_difference
from torso.runs.stage import Stage
from torso.server.robust import minus
from torso.server.statistics import Declared


class RefusedUpload(RequestError):
    """The error for an upload that is not used. `kind`: as in the table above."""

    def __init__(self, kind: str, words: str) -> None:
        self.kind = kind
        super().__init__(words)


@dataclass(frozen=True)
class UploadTerms:
    """The conditions that the uploads of a round must meet."""

    round: int
    # number of other clients' models that a client was offered -> the schema of its message, since it may send a number
    # for each of these models
    forms: Mapping[int, Schema]
    offered: Mapping[int, int]  # client -> that number, if it is not 0
    samples: Mapping[int, int]  # client -> the number of samples that it has declared; empty if none were declared
    declared: Declared = field(default_factory=dict)  # the statistics

    @classmethod
    def of(cls, stage: Stage, told: Told, samples: Mapping[int, int]) -> UploadTerms:
        forms = {0: upload_schema(stage, told, -1)} | {
            len(others): upload_schema(stage, told, k) for k, others in told.offers.items()
        }
        return cls(
            told.round,
            forms,
            {client: len(others) for client, others in told.offers.items()},
            samples,
            stage.declared(),
        )

    def misfits(self, sent: Sent) -> dict[int, RefusedUpload]:
        """Client -> why its upload has a wrong form or wrong numbers. Nothing is read from the device."""
        form = sent.schema
        if not self.offered and sent.round == self.round and form == self.forms[0] and self._declared(sent):
            return {}  # the usual case: all uploads fit
        found = {
            client: self._misfit(client, form, (sent.round, client, count))
            for client, count in zip(sent.clients, sent.samples, strict=True)
        }
        return {client: refused for client, refused in found.items() if refused is not None}

    def _declared(self, sent: Sent) -> bool:
        """Whether the clients' numbers of samples are those that they have declared, if any were declared."""
        return not self.samples or tuple(map(self.samples.get, sent.clients)) == sent.samples

    def checked(self, message: Message, client: int) -> Sent:
        """The upload in one client's message. Raises `RefusedUpload` if it may not be used."""
        numbers = message.numbers
        refused = self._misfit(client, message.schema, (numbers.round, numbers.client, numbers.samples))
        if refused is not None:
            raise refused
        sent = Sent.received(message)
        if not bool(finite_uploads(sent).all()):
            raise RefusedUpload(NOT_FINITE, "its loss or its weights are not finite")
        if not bool(self.sound(sent).all()):
            raise RefusedUpload(WRONG_NUMBERS, f"its statistics have impossible values. Expected: {self._kinds}")
        return sent

    def sound(self, sent: Sent) -> Tensor:
        """Flags [G] on the device: whether a client's statistics have possible values."""
        return sound(sent.said, self.declared, sent.loss)

    @property
    def _kinds(self) -> str:
        kinds = {name: each.numbers for name, each in self.declared.items() if each.numbers != "any"}
        words = {"count": "whole and not negative"}
        return "; ".join(f"{name} {words.get(kind, kind)}" for name, kind in kinds.items())

    def _misfit(self, client: int, form: Schema, numbers: tuple[int, int, int]) -> RefusedUpload | None:
        """Why an upload has a wrong form or wrong numbers. `numbers`: round, client and number of samples."""
        wanted = self.forms[self.offered.get(client, 0)]
        if form != wanted:
            difference = schema_difference(form, wanted)
            return RefusedUpload(WRONG_FORM, f"the upload of client {client}: {difference}")
        expected = (self.round, client, self.samples.get(client, numbers[2]))
        if numbers != expected:
            text = "round {}, client {}, {} samples"
            return RefusedUpload(WRONG_NUMBERS, f"it is of {text.format(*numbers)}. Expected: {text.format(*expected)}")
        return None


def finite_uploads(sent: Sent, measured: Tensors | None = None) -> Tensor:
    """Flags [G] on the device: whether all values of a client's upload are finite. Nothing waits for the device.

    `measured`: parameters whose distance from the upload will be used. This distance must be finite too."""
    numbers = (sent.loss, *sent.model.values(), *sent.drift.values(), *sent.said.values())
    found = sent.finite & finite_rows(numbers, sent.loss)
    if measured:
        found = found & client_norms(minus({name: sent.model[name] for name in measured}, measured)).isfinite()
    return found


def sound(said: Tensors, declared: Declared, like: Tensor) -> Tensor:
    """Flags [G] on the device: whether a client's statistics have possible values. Values that are not finite pass.

    `like`: a tensor [G] on the device."""
    found = torch.ones_like(like, dtype=torch.bool)
    for name, tensor in said.items():
        kind = declared[name].numbers
        if kind == "any":
            continue
        wrong = tensor < 0
        if kind == "count":
            wrong = wrong | ((tensor != tensor.round()) & tensor.isfinite())
        found = found & ~wrong.reshape(len(tensor), -1).any(dim=1)
    return found
