"""Packs bytes into the content of a Flower message, and unpacks them. Any other content is refused on both sides.

Small messages are one value of a record, large ones one array, which Flower splits into chunks. Flower sends every
record, array and chunk in a separate request, each signed and checked. A value takes three requests and an array five,
and for small messages the requests are the whole cost of a round."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from torso.errors import TorsoError

KIND = "query.torso"  # the message type; Flower accepts few
_RECORD, _ARRAY, _STYPE = "torso", "bytes", "torso"
_SMALL = 4 * 2**20  # bytes; at most this many are sent as a value


class NotOurs(TorsoError):
    """Raised for a message that Torso has not written."""


def pack(data: bytes) -> RecordDict:
    """The content of a message with these bytes."""
    if len(data) <= _SMALL:
        return RecordDict({_RECORD: ConfigRecord({_ARRAY: data})})
    array = Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data)
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: array})})


def unpack(message: Message) -> bytes:
    """The bytes of a message; NotOurs if it has other content."""
    content = message.content
    if list(content) != [_RECORD]:
        raise NotOurs(f"the message holds the records {_few(list(content))}, not {_RECORD!r} alone")
    record = content[_RECORD]
    if isinstance(record, ConfigRecord):
        value = record.get(_ARRAY)
        if list(record) != [_ARRAY] or not isinstance(value, bytes) or len(value) > _SMALL:
            raise NotOurs(f"the record {_RECORD!r} does not hold one value named {_ARRAY!r}, of up to {_SMALL} bytes")
        return value
    if not isinstance(record, ArrayRecord) or list(record) != [_ARRAY]:
        raise NotOurs(f"the record {_RECORD!r} does not hold one array named {_ARRAY!r}")
    array = record[_ARRAY]
    found = (array.stype, array.dtype, tuple(array.shape))
    if found != (_STYPE, "uint8", (len(array.data),)):
        raise NotOurs(f"the array is {_few(found)} with {len(array.data)} bytes, not bytes as Torso sends them")
    return array.data


def _few(found: object) -> str:
    text = str(found)
    return text if len(text) <= 200 else text[:200] + "…"
