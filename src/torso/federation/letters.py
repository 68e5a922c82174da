"""What server and clients write to each other: a header of plain data, checked on both sides, and tensors beside it.

A letter asks, a reply answers. Both are safetensors with the header in the metadata: no pickle, no code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from torso.errors import RequestError
from torso.federation.links import Silence
from torso.federation.reasons import printable
from torso.federation.secure.notes import Sealed, Sealing
from torso.kinds import CountOrZero, Many
from torso.nets import Tensors
from torso.runs.messages import Message, MessageNumbers, by_part, decoded, encoded

PROTOCOL = 2
_ID = r"^[0-9a-f]{32}$"
_DIGEST = r"^([0-9a-f]{64})?$"
Reason = Annotated[str, AfterValidator(printable)]


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")


class Question(_Header):
    """What a letter asks.

    who: describe yourself · refused: you cannot take part · agree: take part in a run · told: take part in a round ·
    sums: of your features by class · exam: measure your models · pooled: measure the generic model ·
    finish: make your model, the run is over. In a secure sum (secure/): keys, shares, unmask."""

    kind: Literal["who", "refused", "agree", "told", "sums", "exam", "pooled", "finish", "keys", "shares", "unmask"]
    protocol: int = PROTOCOL
    run: Annotated[str, Field(pattern=_ID)] | None = None  # which run; none: asked before one
    client: CountOrZero = 0  # the number that the client has in the run
    round: CountOrZero = 0  # of the state that the question is about
    since: CountOrZero = 0  # the last round in which the client's answer counted: what it holds is as that left it …
    back: Many[CountOrZero] = ()  # … and other rounds that the server may go back to
    numbers: MessageNumbers | None = None  # of what is told
    base: Annotated[str, Field(pattern=_DIGEST)] = ""  # digest of the tensors of the model that do not travel
    origin: Annotated[str, Field(pattern=_DIGEST)] = ""  # digest of the model that own models begin at
    names: Many[str] = ()  # exam: the measures
    reason: Reason = ""  # refused
    config: str = ""  # agree: the run's config, as TOML
    agreement: str = ""  # agree: what the clients have agreed on, as JSON
    sealing: Sealing | None = None  # of a secure sum


class Said(_Header):
    """What a reply says; `lacks`: tensors that the server has to send along, `failed`: why there is no answer."""

    kind: Literal[
        "described", "agreed", "sent", "sums", "values", "done", "lacks", "failed", "keys", "shares", "masked"
    ]
    protocol: int = PROTOCOL
    reason: Reason = ""
    lacks: Many[str] = ()  # digests
    description: str = ""  # described: as JSON
    numbers: MessageNumbers | None = None  # of what is sent
    values: Mapping[str, Many[float]] = {}
    sealed: Sealed | None = None  # of a secure sum


@dataclass(frozen=True)
class Letter:
    question: Question
    tensors: Tensors = field(default_factory=dict)

    def encode(self) -> bytes:
        return encoded(self.question, self.tensors)

    @classmethod
    def decode(cls, data: bytes) -> Letter:
        return cls(*decoded(data, Question))

    def message(self) -> Message:
        """What is told, of a letter that tells something."""
        if self.question.numbers is None:
            raise RequestError(f"a letter {self.question.kind!r} tells nothing. Expected: numbers in its header")
        return Message(self.question.numbers, {n: t for n, t in self.tensors.items() if not n.startswith(_BESIDE)})

    def part(self, name: str) -> Tensors:
        """Tensors beside what is told: `base`, `origin`, `shown`."""
        return by_part({n: t for n, t in self.tensors.items() if n.startswith(_BESIDE)}).get(f"{_BESIDE}{name}", {})


@dataclass(frozen=True)
class Reply:
    said: Said
    tensors: Tensors = field(default_factory=dict)

    def encode(self) -> bytes:
        return encoded(self.said, self.tensors)

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        return cls(*decoded(data, Said))


class Unreadable(str):
    """Why what has come back cannot be read."""


def reply_of(answer: bytes | Silence) -> Reply | str:
    """What has come back from a client, or why nothing that can be read has."""
    if isinstance(answer, Silence):
        return answer.reason
    try:
        return Reply.decode(answer)
    except RequestError as error:
        return Unreadable(error)


_BESIDE = "+"


def beside(name: str, tensors: Tensors) -> Tensors:
    """Tensors by the names that they have beside a message."""
    return {f"{_BESIDE}{name}/{key}": tensor for key, tensor in tensors.items()}


def failed(reason: str) -> Reply:
    return Reply(Said(kind="failed", reason=reason))


def digest(tensors: Tensors, names: Iterable[str] | None = None) -> str:
    """SHA-256 of tensors with their names, dtypes and shapes; none of no tensors."""
    chosen = sorted(tensors if names is None else names)
    if not chosen:
        return ""
    made = hashlib.sha256()
    for name in chosen:
        tensor = tensors[name].detach().cpu().contiguous()
        made.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        made.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return made.hexdigest()
