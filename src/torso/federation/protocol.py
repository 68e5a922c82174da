"""The messages between server and clients: requests (`Request`) and replies.

Each has a header of plain data, which the receiver validates, and tensors. It is encoded as safetensors with the header
in the metadata: no pickle, no code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from torso.errors import RequestError
from torso.federation.reasons import printable
from torso.federation.secure.sum_messages import SumReply, SumRequest
from torso.federation.transport import MissingAnswer
from torso.kinds import CountOrZero, FailFastTuple
from torso.nets import Tensors
from torso.runs.messages import Message, MessageNumbers, by_part, decoded, encoded

PROTOCOL = 2
_ID = r"^[0-9a-f]{32}$"
_DIGEST = r"^([0-9a-f]{64})?$"
Reason = Annotated[str, AfterValidator(printable)]


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")


class RequestHeader(_Header):
    """The header of a request. The kinds:

    - who: describe yourself
    - refused: you cannot take part
    - agree: take part in a run
    - told: train in a round
    - sums: send the sums of your features by class
    - exam: measure your models
    - pooled: measure the generic model
    - finish: the run is over, make your own model
    - keys, shares, unmask: stages of a secure sum (secure/)

    A comment that begins with a kind names the only kind that uses the field."""

    kind: Literal["who", "refused", "agree", "told", "sums", "exam", "pooled", "finish", "keys", "shares", "unmask"]
    protocol: int = PROTOCOL
    run: Annotated[str, Field(pattern=_ID)] | None = None  # id of the run; None: there is no run yet
    client: CountOrZero = 0  # the client's number in the run
    round: CountOrZero = 0  # the round of the server's state
    since: CountOrZero = 0  # the last round in which the client's reply counted: it must use its state after this round
    back: FailFastTuple[
        CountOrZero
    ] = ()  # other rounds whose states the client must keep: the run may be resumed there
    numbers: MessageNumbers | None = None  # of the `Told` in the tensors
    base: Annotated[str, Field(pattern=_DIGEST)] = ""  # digest of the model's tensors that do not travel
    origin: Annotated[str, Field(pattern=_DIGEST)] = ""  # digest of the model that clients' own models start from
    names: FailFastTuple[str] = ()  # exam: the measures
    reason: Reason = ""  # refused: why
    config: str = ""  # agree: the run's config, as TOML
    agreement: str = ""  # agree: the agreement as this client may see it, as JSON
    sealing: SumRequest | None = None  # stages of a secure sum


class ReplyHeader(_Header):
    """The header of a reply. `lacks`: the client asks for tensors; `failed`: it could not answer, for this reason."""

    kind: Literal[
        "described", "agreed", "sent", "sums", "values", "done", "lacks", "failed", "keys", "shares", "masked"
    ]
    protocol: int = PROTOCOL
    reason: Reason = ""
    lacks: FailFastTuple[str] = ()  # lacks: the digests of the tensors that are missing
    description: str = ""  # described: as JSON
    numbers: MessageNumbers | None = None  # sent: of the upload in the tensors
    values: Mapping[str, FailFastTuple[float]] = {}  # values: measured values by name
    sealed: SumReply | None = None  # stages of a secure sum


@dataclass(frozen=True)
class Request:
    """A request to a client: header and tensors."""

    header: RequestHeader
    tensors: Tensors = field(default_factory=dict)

    def encode(self) -> bytes:
        return encoded(self.header, self.tensors)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        return cls(*decoded(data, RequestHeader))

    def message(self) -> Message:
        """The header's numbers and the tensors of the `Told` in this request."""
        if self.header.numbers is None:
            raise RequestError(
                f"a request {self.header.kind!r} has no numbers in its header. Expected: those of what is sent"
            )
        return Message(self.header.numbers, {n: t for n, t in self.tensors.items() if not n.startswith(_BESIDE)})

    def part(self, name: str) -> Tensors:
        """The additional tensors of one part: `base`, `origin` or `shown`; {} if there are none."""
        additional = {n: t for n, t in self.tensors.items() if n.startswith(_BESIDE)}
        return by_part(additional).get(f"{_BESIDE}{name}", {})


@dataclass(frozen=True)
class Reply:
    """The reply of a client: header and tensors."""

    header: ReplyHeader
    tensors: Tensors = field(default_factory=dict)

    def encode(self) -> bytes:
        return encoded(self.header, self.tensors)

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        return cls(*decoded(data, ReplyHeader))


class Unreadable(str):
    """The reason why a reply cannot be read. Other reasons, for a reply that has not come, are plain strings."""


def parse_reply(answer: bytes | MissingAnswer) -> Reply | str:
    """The reply in a client's answer, or the reason why there is none."""
    if isinstance(answer, MissingAnswer):
        return answer.reason
    try:
        return Reply.decode(answer)
    except RequestError as error:
        return Unreadable(error)


_BESIDE = "+"


def part_tensors(name: str, tensors: Tensors) -> Tensors:
    """The additional tensors of a part, by the names that they have in a request."""
    return {f"{_BESIDE}{name}/{key}": tensor for key, tensor in tensors.items()}


def failed(reason: str) -> Reply:
    return Reply(ReplyHeader(kind="failed", reason=reason))


def digest(tensors: Tensors, names: Iterable[str] | None = None) -> str:
    """The SHA-256 of tensors with their names, dtypes and shapes; "" if there are no tensors."""
    chosen = sorted(tensors if names is None else names)
    if not chosen:
        return ""
    made = hashlib.sha256()
    for name in chosen:
        tensor = tensors[name].detach().cpu().contiguous()
        made.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        made.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return made.hexdigest()
