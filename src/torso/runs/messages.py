"""The messages between the server and its clients in a round: plain data with a schema, no pickle, no code.

`Told` is what the server sends to all participants of a round, `Sent` what G of them send back. Both stand for one
`Message` per client. A message consists of tensors by name and a few numbers. `cost.py` counts these tensors.
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
from torso.kinds import FailFastTuple
from torso.nets import Tensors
from torso.personal.store import ClientState, StateHandle
from torso.reading import parse_record
from torso.server.statistics import Declared

_MOST_NUMBERS = 10_000  # entries that a header may have; a valid one has a few dozen
_MOST_SIZES = 64  # dimensions that a tensor may have, as in NumPy
H = TypeVar("H", bound=BaseModel)
Schema = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""The tensors of a message: name -> dtype and shape."""


class MessageNumbers(BaseModel):
    """The numbers of a message, which are sent in its header."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")

    kind: Literal["told", "sent"]
    round: int
    client: int
    participants: int = 0  # told: how many clients take part in the round
    offers: FailFastTuple[int] = ()  # told: the other clients whose models are part of the message
    samples: int = 0  # sent: the number of training samples, by which the client is weighted
    loss: float = 0.0  # sent: mean over the training samples
    finite: bool = True  # sent: whether all tensors that the client keeps are finite


@dataclass(frozen=True)
class Message:
    """A message to or from one client."""

    numbers: MessageNumbers
    tensors: Tensors

    @property
    def schema(self) -> Schema:
        return schema_of(self.tensors)

    def encode(self) -> bytes:
        """The message as bytes: a safetensors file with the numbers in its header."""
        return encoded(self.numbers, self.tensors)

    @classmethod
    def decode(cls, data: bytes, schema: Schema | None = None) -> Message:
        """Read and check a message that comes from outside. `schema`: the tensors that it must have, no other ones."""
        found = cls(*decoded(data, MessageNumbers))
        return found if schema is None else found.checked(schema)

    def checked(self, schema: Schema) -> Message:
        """This message. Raises RequestError if it does not have exactly the tensors of a schema."""
        check_schema(f"the {self.numbers.kind} message of client {self.numbers.client}", self.tensors, schema)
        return self


def encoded(header: BaseModel, tensors: Tensors) -> bytes:
    """A safetensors file with `header` as JSON in its metadata."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    alone = {name: tensor.clone() if tensor._is_view() else tensor for name, tensor in plain.items()}
    return save(alone, {"torso": header.model_dump_json()})


def decoded(data: bytes, kind: type[H]) -> tuple[H, Tensors]:
    """Read and check the header (of a class `kind`) and the tensors of a file that comes from outside."""
    try:
        numbers = _header(data)
        parse_record(numbers, _MOST_NUMBERS)
        header = kind.model_validate_json(numbers)
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:  # torch raises RuntimeErrors
        raise RequestError(f"a message of {len(data)} bytes cannot be read: {_reason(error)}") from None
    # copied, because torch's own memory is aligned and a file's is not, and a sum's rounding may depend on alignment
    return header, {name: tensor.clone() for name, tensor in tensors.items()}


def schema_of(tensors: Tensors) -> Schema:
    """The schema of tensors."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def check_schema(what: str, tensors: Tensors, schema: Schema) -> None:
    """Refuse a message that lacks a tensor, has one too many, or one of another shape or type."""
    wrong = schema_difference(schema_of(tensors), schema)
    if wrong:
        raise RequestError(f"{what}: {wrong}")


def schema_difference(found: Schema, wanted: Schema) -> str:
    """A sentence about the first tensor that is not as wanted. Empty if all are."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            return f"{name} is {_words(found.get(name))}. Expected: {_words(wanted.get(name))}"
    return ""


def _words(entry: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "not there" if entry is None else f"{entry[0]} {list(entry[1])}"


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):  # the first line of its message is only the number of errors
        first = error.errors()[0]
        return f"{'.'.join(['numbers', *map(str, first['loc'])])}: {first['msg']}"
    return (str(error) or type(error).__name__).splitlines()[0]


def _header(data: bytes) -> str:
    """The message's numbers as JSON text.

    The shapes of the tensors are checked too: safetensors accepts sizes that no tensor can have if one size is 0."""
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
    """What the server tells the participants of a round."""

    round: int
    # [*], the whole model: the tensors that are broadcast, and those that clients know from the seed or from before
    model: Tensors
    travels: tuple[str, ...]  # the tensors of `model` that are sent; none if clients continue from their own uploads
    participants: int
    drift: Tensors = field(default_factory=dict)  # [*], mean over all clients of their drift corrections' memories
    mean: Tensors = field(default_factory=dict)  # [*], mean of the participants' models before the round (spec 5.5)
    origin: Tensors = field(default_factory=dict)  # [*], the model of the first round, if own models begin at it
    offers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # client -> others whose models it is sent …
    uploads: Mapping[int, Tensors] = field(default_factory=dict)  # … and these models (spec 5.6)
    said: Tensors = field(default_factory=dict)  # statistics for all clients (server/statistics.py) …
    own: Mapping[int, Tensors] = field(default_factory=dict)  # … and client -> statistics for it alone

    def for_clients(self, clients: Sequence[int]) -> Told:
        """This object with only what is meant for these clients: the models and statistics that they are sent."""
        if not self.offers and not self.own:
            return self
        offers = {k: self.offers[k] for k in clients if k in self.offers}
        offered = dict.fromkeys(other for others in offers.values() for other in others)
        uploads = {other: self.uploads[other] for other in offered}
        own = {k: self.own[k] for k in clients if k in self.own}
        return Told(**{**vars(self), "offers": offers, "uploads": uploads, "own": own})

    def statistics(self, clients: Sequence[int], device: torch.device) -> Tensors:
        """The statistics that G clients are told [G, *]."""
        found = {n: t.to(device).expand(len(clients), *t.shape) for n, t in self.said.items()}
        if not self.own:
            return found
        each = [self.own.get(client, {}) for client in clients]
        return {**found, **{n: torch.stack([own[n].to(device) for own in each]) for n in each[0]}}

    def tensors(self, client: int) -> Tensors:
        """The tensors of one participant's message."""
        tensors = {f"model/{name}": self.model[name] for name in self.travels}
        tensors |= {f"drift/{name}": tensor for name, tensor in self.drift.items()}
        tensors |= {f"mean/{name}": tensor for name, tensor in self.mean.items()}
        tensors |= {f"said/{name}": t for name, t in {**self.said, **self.own.get(client, {})}.items()}
        for other in self.offers.get(client, ()):
            tensors |= {f"model {other}/{name}": tensor for name, tensor in self.uploads[other].items()}
        return tensors

    def message(self, client: int) -> Message:
        """The message to one participant."""
        offers = self.offers.get(client, ())
        numbers = MessageNumbers(
            kind="told", round=self.round, client=client, participants=self.participants, offers=offers
        )
        return Message(numbers, self.tensors(client))

    @classmethod
    def heard(cls, message: Message, known: Tensors, origin: Tensors | None = None) -> Told:
        """What a client reads from its message.

        `known`: the tensors of the model that the client has already. `origin`: the model of the stage's first round,
        if own models begin at it."""
        if message.numbers.kind != "told":
            raise RequestError(f"a client was sent a {message.numbers.kind!r} message. Expected: 'told'")
        parts = by_part(message.tensors)
        numbers = message.numbers
        sent = parts.get("model", {})
        return cls(
            round=numbers.round,
            model={**known, **sent},
            travels=tuple(sorted(sent)),
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
    """The uploads of G clients, stacked, and the new states of these clients, which are never sent."""

    round: int
    clients: tuple[int, ...]
    samples: tuple[int, ...]  # by which the clients are weighted
    model: Tensors  # [G, *]: the shared part
    loss: Tensor  # [G], on the device; the round reads all losses at once
    finite: Tensor  # [G], whether all tensors that a client keeps are finite
    drift: Tensors = field(default_factory=dict)  # [G, *]: changes of drift corrections' memories, if they are sent
    said: Tensors = field(default_factory=dict)  # [G, *]: statistics, as the method has declared them
    left: Mapping[int, ClientState | StateHandle] = field(default_factory=dict)  # new states; no part of a message
    refused: Mapping[int, str] = field(default_factory=dict)  # other clients, whose uploads are not used -> why

    @classmethod
    def nothing(cls, round: int, refused: Mapping[int, str]) -> Sent:
        """No uploads, only a note of those that are not used."""
        return cls(round, (), (), {}, torch.zeros(0), torch.ones(0, dtype=torch.bool), refused=refused)

    @property
    def schema(self) -> Schema:
        """The schema of the message of each client."""
        found = {f"model/{name}": tensor for name, tensor in self.model.items()}
        found |= {f"drift/{name}": tensor for name, tensor in self.drift.items()}
        found |= {f"said/{name}": tensor for name, tensor in self.said.items()}
        return {name: (tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in found.items()}

    def only(self, places: Sequence[int]) -> Sent:
        """The uploads of the clients at these places. Tensors are copied, without waiting for the device."""
        clients = tuple(self.clients[place] for place in places)
        rows = on_device(self.loss.device, places).long()
        return replace(
            self,
            clients=clients,
            samples=tuple(self.samples[place] for place in places),
            model={name: tensor[rows] for name, tensor in self.model.items()},
            loss=self.loss[rows],
            finite=self.finite[rows],
            drift={name: tensor[rows] for name, tensor in self.drift.items()},
            said={name: tensor[rows] for name, tensor in self.said.items()},
            left={client: self.left[client] for client in clients if client in self.left},
        )

    def message(self, place: int = 0) -> Message:
        """The message of one of the clients."""
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
    def received(cls, message: Message, left: Mapping[int, ClientState | StateHandle] | None = None) -> Sent:
        """What the server reads from one client's message. `left`: a handle on the client's new state."""
        if message.numbers.kind != "sent":
            raise RequestError(f"the server was sent a {message.numbers.kind!r} message. Expected: 'sent'")
        parts = by_part(message.tensors)
        numbers = message.numbers
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
    """The tensors of a message, grouped by the part of their names before the first "/"."""
    parts: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        part, slash, rest = name.partition("/")
        if slash:
            parts.setdefault(part, {})[rest] = tensor
    return parts


def sent_schema(model: Tensors, travels: Sequence[str], drift: Sequence[str], declared: Declared) -> Schema:
    """The schema that a participant's message must have."""
    like: dict[str, Any] = {f"model/{name}": model[name] for name in travels}
    like |= {f"drift/{name}": model[name] for name in drift}
    return {**schema_of(like), **{f"said/{name}": (torch.float32, each.shape) for name, each in declared.items()}}
