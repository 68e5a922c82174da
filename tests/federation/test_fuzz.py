"""Whatever bytes come from the network: a RequestError in one line, or a message that can be used (bench/fuzz.py)."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.federation.mutations import Recorded, mutated, recorded

from torso.errors import RequestError
from torso.federation.description import Description
from torso.federation.flower.admission import _beginning, parse_key_status
from torso.federation.protocol import Reply, Request, Unreadable, parse_reply

few = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded("scaffold", tmp_path_factory.mktemp("fuzz"), "train.rounds=1", "measure.names=initial")


@few
@given(rng=st.randoms(use_true_random=False), data=st.data())
def test_a_mutated_letter_or_reply_is_refused_or_used(wire: Recorded, rng: Random, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(wire.requests)))
    for message, decode in ((wire.requests[kind], Request.decode), (wire.replies[kind], Reply.decode)):
        with suppress(RequestError):
            decode(mutated(message, rng)[1])


@few
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for text in (data, struct.pack("<Q", len(data)) + data):
        found = parse_reply(text)
        assert isinstance(found, Unreadable)
        assert found.startswith(f"a message of {len(text)} bytes cannot be read: ")


def message(tensors: dict[str, Any], numbers: str = '{"kind": "sent"}', payload: bytes = b"") -> bytes:
    header = json.dumps({"__metadata__": {"torso": numbers}, **tensors}).encode()
    return struct.pack("<Q", len(header)) + header + payload


def tensor(*shape: int, dtype: str = "F32", size: int = 0) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}


@pytest.mark.parametrize(
    "found",
    [
        message({"a": tensor(0, 2**62, 2**62)}),  # nothing, with strides that no integer holds
        message({"a": tensor(0, 2**63)}),
        message({"a": tensor(*[1] * 100, size=4)}, payload=b"1234"),
        message({"a": tensor(2, dtype="F4", size=1)}, payload=b"1"),
        message({"a": {"dtype": "F32"}}),
        message({"a": [1, 2]}),
        message({f"{k}": tensor(0) for k in range(30_000)}),
        message({}, "[" * 10_000),
        message({}, '{"kind": "sent", "protocol": ' + "9" * 5000 + "}"),
        message({}, '{"kind": "values", "values": {' + ",".join(f'"{k}": []' for k in range(20_000)) + "}}"),
        b"",
        struct.pack("<Q", 2**64 - 1),
    ],
    ids=range(12),
)
def test_what_no_tensor_and_no_header_can_be_is_refused(found: bytes) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        Reply.decode(found)


def test_a_million_wrong_entries_are_one_error() -> None:
    """All of them, with a place and a reason each, would be hundreds of times as large as the message."""
    wrong = message({}, '{"kind": "lacks", "lacks": [' + "1," * 200_000 + "1]}")
    unknown = message({}, "{" + ",".join(f'"{k}": 1' for k in range(50_000)) + "}")
    for found in (wrong, unknown):
        tracemalloc.start()
        with pytest.raises(RequestError):
            Reply.decode(found)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 * len(found)


def test_a_description_with_a_million_wrong_classes_is_one_error(wire: Recorded) -> None:
    told = json.loads(Reply.decode(wire.replies["who"]).header.description)
    with pytest.raises(RequestError, match=r"^its words: classes.0 = 1 is not accepted"):
        Description.read(json.dumps({**told, "classes": [1] * 50_000}), "its words")
    with pytest.raises(RequestError, match=r"^its words: it has more than 100000 named entries"):
        Description.read(json.dumps({**told, **dict.fromkeys(map(str, range(100_001)), 1)}), "its words")


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"state": 1}', b"\xff", b"[" * 10**5, b'{"state": "\\ud800"}'])
def test_what_is_no_standing_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_key_status(answer)


def test_an_answer_is_read_as_far_as_a_server_would_speak_and_not_unpacked() -> None:
    """Ten megabytes of zeros are ten kilobytes when they are packed."""
    packed = gzip.compress(bytes(10**7))
    assert _beginning(httpx.Response(200, headers={"content-encoding": "gzip"}, stream=_Stream(packed))) == packed
    assert _beginning(httpx.Response(200, stream=_Stream(bytes(10**6)))) == b""


class _Stream(httpx.SyncByteStream):
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __iter__(self) -> Iterator[bytes]:
        return (self.data[at : at + 4096] for at in range(0, len(self.data), 4096))
