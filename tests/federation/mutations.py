"""Requests and replies as somebody hostile or broken would write them: mutations of real ones, for tests and bench."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.federation.at_home import Wire, homes_of
from tests.runs.samples import tiny

from torso.federation.client_service import ClientService
from torso.federation.protocol import Request
from torso.federation.run import run_federation

DTYPES = ("F32", "F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "X", "", None, 7)
ODD: tuple[Any, ...] = (None, True, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**40, 0.5, 1e308, math.nan, math.inf)
WORDS: tuple[Any, ...] = ("", "x", "\x00", "\ud800", "../..", "told", "sent", "0" * 64, "9" * 5000, "é" * 300)
FEW, DEEP = 3000, 3000
MANY = 120_000  # more than a record may have, seldom: it takes a second


class Recorded(Wire):
    """Keeps the first request of each kind, and what was replied."""

    def __init__(self, homes: Mapping[str, ClientService]) -> None:
        super().__init__(homes)
        self.requests: dict[str, bytes] = {}
        self.replies: dict[str, bytes] = {}

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Any:
        for node, answer in super().exchange(messages, seconds):
            kind = Request.decode(messages[node]).header.kind
            self.requests.setdefault(kind, messages[node])
            if isinstance(answer, bytes):
                self.replies.setdefault(kind, answer)
            yield node, answer


def recorded(method: str, folder: Path, *sets: str) -> Recorded:
    """All requests and replies of a short federation."""
    config = tiny(
        method,
        *(
            "data.clients=3",
            "data.partition=iid",
            "train.fraction=1.0",
            "train.rounds=2",
            "run.flower.clients=3",
            "run.flower.wait=2",
        ),
        *sets,
    )
    wire = Recorded(homes_of(config, folder / "homes"))
    assert run_federation(config, wire, folder / "real", say=lambda _: None).ok
    return wire


def mutated(message: bytes, rng: Random) -> tuple[str, bytes]:
    """The name of a mutation, and what it makes of a message."""
    name = rng.choice(sorted(_MUTATIONS))
    return name, _MUTATIONS[name](message, rng)


def _parts(message: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(message[:8], "little")
    return json.loads(message[8 : 8 + size]), message[8 + size :]


def _joined(header: str | dict[str, Any], payload: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + payload


def _flip(message: bytes, rng: Random) -> bytes:
    """Bits, mostly of the header."""
    found = bytearray(message)
    end = len(found) if rng.random() < 0.2 else min(len(found), 8 + int.from_bytes(message[:8], "little"))
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        found[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(message: bytes, rng: Random) -> bytes:
    return message[: rng.randrange(len(message))]


def _grown(message: bytes, rng: Random) -> bytes:
    place = rng.choice((0, 8, len(message), rng.randrange(len(message))))
    return message[:place] + rng.randbytes(rng.choice((1, 8, 1000))) + message[place:]


def _length(message: bytes, rng: Random) -> bytes:
    size = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(message), len(message) - 8, rng.randrange(2**64)))
    return struct.pack("<Q", size) + message[8:]


def _hostile(rng: Random) -> Any:
    """A value that nobody expects."""
    made: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(ODD),
        lambda: rng.choice(WORDS),
        lambda: [rng.choice(ODD)] * _count(rng),
        lambda: [rng.choice(WORDS)] * rng.choice((1, 10)),
        lambda: {str(k): rng.choice(ODD) for k in range(_count(rng))},
        lambda: _Raw(rng.choice(("[", '{"a":')) * rng.choice((10, DEEP))),
        lambda: _Raw(_closed(rng.choice((10, 100, DEEP)))),
    )
    return rng.choice(made)()


def _count(rng: Random) -> int:
    return MANY if rng.random() < 0.01 else rng.choice((0, 1, FEW))


class _Raw:
    """Text that stands in JSON as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def _closed(depth: int) -> str:
    return "[" * depth + "]" * depth


def _json(tree: Any) -> str:
    """JSON in which raw texts stand as they are."""
    raw: list[str] = []

    def plain(value: Any) -> str:
        assert isinstance(value, _Raw)
        raw.append(value.text)
        return f"<raw {len(raw) - 1}>"

    text = json.dumps(tree, default=plain)
    for place, each in enumerate(raw):
        text = text.replace(f'"<raw {place}>"', each)
    return text


def _somewhere(tree: Any, rng: Random, value: Any) -> Any:
    """The tree with another value at some place: an entry replaced, added, or gone."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(sorted(tree))
        if rng.random() < 0.1:
            return {name: each for name, each in tree.items() if name != key}
        if rng.random() < 0.1:
            return {**tree, rng.choice(("another", "model/x", "scores", "+base/x", "", "kind")): value}
        return {**tree, key: _somewhere(tree[key], rng, value)}
    if isinstance(tree, list) and tree and rng.random() < 0.7:
        place = rng.randrange(len(tree))
        return [*tree[:place], _somewhere(tree[place], rng, value), *tree[place + 1 :]]
    return value


def _numbers(message: bytes, rng: Random) -> bytes:
    """Something in the numbers of the header."""
    header, payload = _parts(message)
    tree = json.loads(header["__metadata__"]["torso"])
    for name in ("description", "agreement"):  # JSON within
        if tree.get(name) and rng.random() < 0.5:
            tree[name] = _json(_somewhere(json.loads(tree[name]), rng, _hostile(rng)))
            break
    else:
        tree = _somewhere(tree, rng, _hostile(rng))
    header["__metadata__"]["torso"] = _json(tree)
    return _joined(header, payload)


def _entries(message: bytes, rng: Random) -> bytes:
    """Something in what the header says of the tensors."""
    header, payload = _parts(message)
    return _joined(_json(_somewhere(header, rng, _hostile(rng))), payload)


def _tensor(message: bytes, rng: Random) -> bytes:
    """One tensor with another dtype, shape or place, or under another name."""
    header, payload = _parts(message)
    names = sorted(set(header) - {"__metadata__"})
    if not names:
        return _entries(message, rng)
    name = rng.choice(names)
    entry = dict(header[name])
    what = rng.choice(("dtype", "shape", "data_offsets", "name", "twice", "empty", "many"))
    if what == "dtype":
        entry["dtype"] = rng.choice(DTYPES)
    elif what == "shape":
        sizes = (0, 1, 2, 2**31, 2**62, 2**63, -1, *entry["shape"])
        entry["shape"] = [rng.choice(sizes) for _ in range(rng.choice((0, 1, 2, 5, 70)))]
    elif what == "data_offsets":
        entry["data_offsets"] = [rng.choice((0, 1, 4, 2**62, 2**63, -4, len(payload))) for _ in range(2)]
    elif what == "name":
        header[rng.choice(("model/x", "drift/x", "", "x" * 10**4, "scores"))] = header.pop(name)
        return _joined(header, payload)
    elif what == "twice":
        text = json.dumps(header)
        return _joined(text[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}" + "}", payload)
    elif what == "empty":
        entry |= {"shape": [0, rng.choice((2**31, 2**62)), rng.choice((1, 2**62))], "data_offsets": [0, 0]}
    else:
        nothing = {"dtype": "U8", "shape": [0], "data_offsets": [len(payload)] * 2}
        return _joined({**header, **{f"model/{k}": nothing for k in range(_count(rng))}}, payload)
    return _joined({**header, name: entry}, payload)


def _values(message: bytes, rng: Random) -> bytes:
    """Numbers of the tensors, among them NaN and infinities."""
    header, payload = _parts(message)
    if len(payload) < 4:
        return _flip(message, rng)
    found = bytearray(payload)
    for _ in range(rng.choice((1, 100))):
        place = rng.randrange(len(found) // 4) * 4
        found[place : place + 4] = struct.pack("<f", rng.choice((math.nan, math.inf, -math.inf, 3e38, 1e-45)))
    return _joined(header, bytes(found))


_MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    "bits flipped": _flip,
    "cut off": _cut,
    "bytes inserted": _grown,
    "another length field": _length,
    "numbers of the header": _numbers,
    "entries of the header": _entries,
    "one tensor's entry": _tensor,
    "values": _values,
}
