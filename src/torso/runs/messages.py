"""What travels between the server and its clients in a round: plain data with a schema, no pickle, no code.

`Told` is what the participants of a round are told, `Sent` what G of them send back; each stands for one `Message` a
client. A message is tensors by name and a few numbers. What `cost.py` counts is these tensors.
G clients, * a tensor's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from torso.data.sending import on_device
from torso.errors import RequestError
from torso.kinds import Many
from torso.nets import Tensors
from torso.personal.store import ClientState, Elsewhere
from torso.reading import parse_record
from torso.server.statistics import Declared

_MOST_NUMBERS = 10_000  # named entries of a header: it has a few dozen
_MOST_SIZES = 64  # dimensions of a tensor, as NumPy has it
H = TypeVar("H", bound=BaseModel)
Schema = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Which tensors a message has: by name, their dtype and shape."""


class MessageNumbers(BaseModel):
    """The numbers of a message, as they stand in its header."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")

    kind: Literal["told", "sent"]
    round: int
    client: int
    participants: int = 0  # told: how many clients take part in the round
    offers: Many[int] = ()  # told: whose models come along
    samples: int = 0  # sent: how many the client has learned from, by which it is weighed
    loss: float = 0.0  # sent: mean over the samples met
    finite: bool = True  # sent: whether all that the client keeps is


@dataclass(frozen=True)
class Message:
    """One client's message, to it or from it."""

    numbers: MessageNumbers
    tensors: Tensors

    @property
    def schema(self) -> Schema:
        return schema_of(self.tensors)

    def encode(self) -> bytes:
        """safetensors, with the numbers in the header."""
        return encoded(self.numbers, self.tensors)

    @classmethod
    def decode(cls, data: bytes, schema: Schema | None = None) -> Message:
        """A message from outside, checked; `schema` says which tensors it must have, no more and no less."""
        found = cls(*decoded(data, MessageNumbers))
        return found if schema is None else found.checked(schema)

    def checked(self, schema: Schema) -> Message:
        """The same; refused where it has not the tensors that it must have, no more and no less."""
        check_schema(f"the {self.numbers.kind} message of client {self.numbers.client}", self.tensors, schema)
        return self


def encoded(header: BaseModel, tensors: Tensors) -> bytes:
    """safetensors, with what is no tensor in its header."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    alone = {name: tensor.clone() if tensor._is_view() else tensor for name, tensor in plain.items()}
    return save(alone, {"torso": header.model_dump_json()})


def decoded(data: bytes, kind: type[H]) -> tuple[H, Tensors]:
    """A header and tensors from outside, checked."""
    try:
        numbers = _header(data)
        parse_record(numbers, _MOST_NUMBERS)
        header = kind.model_validate_json(numbers)
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:  # torch's are RuntimeErrors
        raise RequestError(f"a message of {len(data)} bytes cannot be read: {_reason(error)}") from None
    # torch's own memory is aligned, a file's is not, and sums over a tensor may depend on where it lies
    return header, {name: tensor.clone() for name, tensor in tensors.items()}


def schema_of(tensors: Tensors) -> Schema:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def check_schema(what: str, tensors: Tensors, schema: Schema) -> None:
    """Refuse a message that lacks a tensor, has one too many, or one of another shape or type."""
    if wrong := unlike(schema_of(tensors), schema):
        raise RequestError(f"{what}: {wrong}")


def unlike(found: Schema, wanted: Schema) -> str:
    """The first tensor that is not as wanted, in words, or nothing."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            have, want = (_words(each.get(name)) for each in (found, wanted))
            return f"{name} is {have}. Expected: {want}"
    return ""


def _words(entry: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "not there" if entry is None else f"{entry[0]} {list(entry[1])}"


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):  # in the first line of its own words it only counts
        first = error.errors()[0]
        return f"{'.'.join(['numbers', *map(str, first['loc'])])}: {first['msg']}"
    return (str(error) or type(error).__name__).splitlines()[0]


def _header(data: bytes) -> str:
    """The numbers, as text. Of the rest of the header it is seen that tensors could be made of it: safetensors takes
    sizes that no tensor can have, as long as one of them is 0."""
    if len(data) < 8:
        raise ValueError("it is too short for a header")
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise ValueError(f"its header has {size} bytes. Expected: at most {len(data) - 8}")
    tree = parse_record(data[8 : 8 + size])
    about = tree.pop("__metadata__", None) if isinstance(tree, dict) else None
    found = about.get("torso") if isinstance(about, dict) else None
    if not isinstance(found, str):
        raise ValueError("its header has no numbers. Expected: an entry 'torso' in '__metadata__'")
    for name, entry in tree.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or len(shape) > _MOST_SIZES:
            raise ValueError(f"the tensor {name!r} has no shape. Expected: a list of up to {_MOST_SIZES} numbers")
    return found


@dataclass(frozen=True)
class Told:
    """What the participants of a round are told.

    `model` [*] is whole: what travels as it is broadcast, and what clients know from the run's seed or from before."""

    round: int
    model: Tensors
    travels: tuple[str, ...]  # the tensors of `model` that are sent; none where clients go on from their own uploads
    participants: int
    drift: Tensors = field(default_factory=dict)  # mean over all clients of what their corrections remember
    mean: Tensors = field(default_factory=dict)  # of the participants' models before the round (spec 5.5)
    origin: Tensors = field(default_factory=dict)  # the model of the first round, where own models begin at it
    offers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # whose models a client is sent besides …
    uploads: Mapping[int, Tensors] = field(default_factory=dict)  # … and those (spec 5.6)
    said: Tensors = field(default_factory=dict)  # what all are told of statistics (server/statistics.py) …
    own: Mapping[int, Tensors] = field(default_factory=dict)  # … and what each is told besides

    def for_clients(self, clients: Sequence[int]) -> Told:
        """What these clients are told: no model of others but those that the server sends them."""
        if not self.offers and not self.own:
            return self
        offers = {k: self.offers[k] for k in clients if k in self.offers}
        lent = dict.fromkeys(other for others in offers.values() for other in others)
        uploads = {other: self.uploads[other] for other in lent}
        own = {k: self.own[k] for k in clients if k in self.own}
        return Told(**{**vars(self), "offers": offers, "uploads": uploads, "own": own})

    def statistics(self, clients: Sequence[int], device: torch.device) -> Tensors:
        """What G clients are told of statistics [G, *]."""
        found = {n: t.to(device).expand(len(clients), *t.shape) for n, t in self.said.items()}
        if not self.own:
            return found
        each = [self.own.get(client, {}) for client in clients]
        return {**found, **{n: torch.stack([own[n].to(device) for own in each]) for n in each[0]}}

    def tensors(self, client: int) -> Tensors:
        """The tensors that one participant is sent."""
        tensors = {f"model/{name}": self.model[name] for name in self.travels}
        tensors |= {f"drift/{name}": tensor for name, tensor in self.drift.items()}
        tensors |= {f"mean/{name}": tensor for name, tensor in self.mean.items()}
        tensors |= {f"said/{name}": t for name, t in {**self.said, **self.own.get(client, {})}.items()}
        for other in self.offers.get(client, ()):
            tensors |= {f"model {other}/{name}": tensor for name, tensor in self.uploads[other].items()}
        return tensors

    def message(self, client: int) -> Message:
        """What one participant is sent."""
        offers = self.offers.get(client, ())
        numbers = MessageNumbers(
            kind="told", round=self.round, client=client, participants=self.participants, offers=offers
        )
        return Message(numbers, self.tensors(client))

    @classmethod
    def heard(cls, message: Message, known: Tensors, origin: Tensors | None = None) -> Told:
        """What a client makes of its message, with what it knows already: the model of the start, and of the stage's
        first round, where own models begin at it."""
        if message.numbers.kind != "told":
            raise RequestError(f"a client was sent a {message.numbers.kind!r} message. Expected: 'told'")
        parts = by_part(message.tensors)
        numbers = message.numbers
        model, travels = {**known, **parts.get("model", {})}, tuple(sorted(parts.get("model", {})))
        return cls(
            round=numbers.round,
            model=model,
            travels=travels,
            participants=numbers.participants,
            drift=parts.get("drift", {}),
            mean=parts.get("mean", {}),
            origin=origin or {},
            offers={numbers.client: numbers.offers},
            uploads={other: parts.get(f"model {other}", {}) for other in numbers.offers},
            said=parts.get("said", {}),
        )


@dataclass(frozen=True)
class Sent:
    """What came back from G clients: messages, stacked, and what each client goes on with, which stays where it is."""

    round: int
    clients: tuple[int, ...]
    samples: tuple[int, ...]  # by which the clients are weighed
    model: Tensors  # [G, *]: what the server gets of their models
    loss: Tensor  # [G], on the device: the round reads all of them at once
    finite: Tensor  # [G], whether all that a client keeps is
    drift: Tensors = field(default_factory=dict)  # [G, *]: change of what their corrections remember, where it is sent
    said: Tensors = field(default_factory=dict)  # [G, *]: statistics, as the method has declared them
    left: Mapping[int, ClientState | Elsewhere] = field(default_factory=dict)  # never a part of a message
    refused: Mapping[int, str] = field(default_factory=dict)  # others, who sent what is not used: what is wrong with it

    @classmethod
    def nothing(cls, round: int, refused: Mapping[int, str]) -> Sent:
        """What is left of uploads that are not used."""
        return cls(round, (), (), {}, torch.zeros(0), torch.ones(0, dtype=torch.bool), refused=refused)

    @property
    def schema(self) -> Schema:
        """What every one of the clients sends."""
        found = {f"model/{name}": tensor for name, tensor in self.model.items()}
        found |= {f"drift/{name}": tensor for name, tensor in self.drift.items()}
        found |= {f"said/{name}": tensor for name, tensor in self.said.items()}
        return {name: (tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in found.items()}

    def only(self, places: Sequence[int]) -> Sent:
        """The same of the clients at these places, in memory of their own; nobody waits for a device."""
        who, rows = tuple(self.clients[place] for place in places), on_device(self.loss.device, places).long()
        return replace(
            self,
            clients=who,
            samples=tuple(self.samples[place] for place in places),
            model={name: tensor[rows] for name, tensor in self.model.items()},
            loss=self.loss[rows],
            finite=self.finite[rows],
            drift={name: tensor[rows] for name, tensor in self.drift.items()},
            said={name: tensor[rows] for name, tensor in self.said.items()},
            left={client: self.left[client] for client in who if client in self.left},
        )

    def message(self, place: int = 0) -> Message:
        """What one of the clients sends."""
        tensors = {f"model/{name}": tensor[place] for name, tensor in self.model.items()}
        tensors |= {f"drift/{name}": tensor[place] for name, tensor in self.drift.items()}
        tensors |= {f"said/{name}": tensor[place] for name, tensor in self.said.items()}
        numbers = MessageNumbers(
            kind="sent",
            round=self.round,
            client=self.clients[place],
            samples=self.samples[place],
            loss=float(self.loss[place]),
            finite=bool(self.finite[place]),
        )
        return Message(numbers, tensors)

    @classmethod
    def received(cls, message: Message, left: Mapping[int, ClientState | Elsewhere] | None = None) -> Sent:
        """What the server makes of one client's message; `left`: a handle on what the client goes on with."""
        if message.numbers.kind != "sent":
            raise RequestError(f"the server was sent a {message.numbers.kind!r} message. Expected: 'sent'")
        parts, numbers = by_part(message.tensors), message.numbers
        return cls(
            round=numbers.round,
            clients=(numbers.client,),
            samples=(numbers.samples,),
            model={name: tensor[None] for name, tensor in parts.get("model", {}).items()},
            loss=torch.tensor([numbers.loss]),
            finite=torch.tensor([numbers.finite and math.isfinite(numbers.loss)]),
            drift={name: tensor[None] for name, tensor in parts.get("drift", {}).items()},
            said={name: tensor[None] for name, tensor in parts.get("said", {}).items()},
            left=left or {},
        )


def by_part(tensors: Tensors) -> dict[str, Tensors]:
    """The tensors of a message by what stands before the first stroke of their names."""
    parts: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        part, stroke, rest = name.partition("/")
        if stroke:
            parts.setdefault(part, {})[rest] = tensor
    return parts


def sent_schema(model: Tensors, travels: Sequence[str], drift: Sequence[str], declared: Declared) -> Schema:
    """What a participant's message must look like, as the server knows before it comes."""
    like: dict[str, Any] = {f"model/{name}": model[name] for name in travels}
    like |= {f"drift/{name}": model[name] for name in drift}
    return {**schema_of(like), **{f"said/{name}": (torch.float32, each.shape) for name, each in declared.items()}}
