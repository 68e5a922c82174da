"""Reading FEMNIST with its writers from the file that TensorFlow Federated distributes.

It is an lzma-packed SQLite file whose table `examples` has a row for every image: (split_name, client_id,
serialized_example_proto). The last is a tf.train.Example with `label` (an integer) and `pixels` (784 floats; 1 is
paper, 0 is ink). Only the part of the protobuf format that this needs is implemented here.
"""

from __future__ import annotations

import lzma
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import numpy as np

from torso.errors import RequestError

_MOST = 5_000_000_000  # bytes unpacked; the file has 4,708,990,976
_MOST_IMAGES = 1_000_000
_SIDE = 28

Step = Callable[[int, int], None]


def read_femnist(path: Path, step: Step) -> dict[str, Any]:
    """Images [n, 28, 28], labels and writers of both splits; dark ink on white paper, as in LEAF."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".femnist-") as folder:
        plain = Path(folder) / "emnist.sqlite"
        with lzma.open(path) as packed, plain.open("wb") as out:
            _unpack(packed, out)
        with closing(sqlite3.connect(f"file:{plain}?mode=ro", uri=True)) as base:
            return _arrays(base, step)


def _unpack(packed: IO[bytes], out: IO[bytes]) -> None:
    done = 0
    while chunk := packed.read(1 << 20):
        done += len(chunk)
        if done > _MOST:
            raise RequestError(f"emnist_all.sqlite.lzma unpacks to more than {_MOST:,} bytes")
        out.write(chunk)


def _arrays(base: sqlite3.Connection, step: Step) -> dict[str, Any]:
    names = base.execute("SELECT DISTINCT client_id FROM examples WHERE split_name = 'all_train' ORDER BY client_id")
    numbers = {name: number for number, (name,) in enumerate(names)}
    counts = dict(base.execute("SELECT split_name, COUNT(*) FROM examples GROUP BY split_name"))
    arrays: dict[str, Any] = {}
    done, total = 0, counts.get("all_train", 0) + counts.get("all_test", 0)
    for split in ("train", "test"):
        count = counts.get(f"all_{split}", 0)
        if not 0 < count <= _MOST_IMAGES:
            raise RequestError(f"emnist_all.sqlite has {count:,} rows of all_{split}. Expected: up to {_MOST_IMAGES:,}")
        images = np.empty((count, _SIDE, _SIDE), np.uint8)
        labels, writers = np.empty(count, np.int64), np.empty(count, np.int64)
        rows = base.execute(
            "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid",
            (f"all_{split}",),
        )
        for place, (client, blob) in enumerate(rows):
            images[place], labels[place] = parse_example(blob)
            writers[place] = numbers[client]
            if place % 5000 == 0:
                step(done + place, total)
        done += count
        arrays |= {f"{split}_images": images, f"{split}_labels": labels, f"{split}_writers": writers}
    step(total, total)
    return arrays


def parse_example(blob: bytes) -> tuple[np.ndarray, int]:
    """Pixels uint8 [28, 28] and label of one tf.train.Example."""
    features: dict[str, bytes] = {}
    for _, outer in _fields(blob, 1):  # Example.features
        for _, entry in _fields(outer, 1):  # Features.feature: a map of name and Feature
            parts = dict(_fields(entry))
            features[parts[1].decode()] = parts[2]
    pixels = np.concatenate([_floats(values) for _, values in _fields(features["pixels"], 2)])  # Feature.float_list
    labels = [number for _, values in _fields(features["label"], 3) for number in _integers(values)]  # int64_list
    if pixels.shape != (_SIDE**2,) or len(labels) != 1 or not ((pixels >= 0) & (pixels <= 1)).all():
        raise RequestError(f"an example has {pixels.size} pixels and {len(labels)} labels. Expected: 784 in 0..1 and 1")
    return np.rint(255 * pixels).astype(np.uint8).reshape(_SIDE, _SIDE), labels[0]


def _floats(values: bytes) -> np.ndarray:
    """The numbers of a FloatList, whether packed or in one field each."""
    return np.concatenate([np.frombuffer(value, "<f4") for _, value in _fields(values, 1)])


def _integers(values: bytes) -> Iterator[int]:
    """The numbers of an Int64List, whether packed or in one field each."""
    for _, value in _fields(values, 1):
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield number


def _fields(blob: bytes, wanted: int = 0) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message as (number, content); `wanted`: only fields with this number, 0: all."""
    at = 0
    while at < len(blob):
        key, at = _varint(blob, at)
        number, kind = key >> 3, key & 7
        if kind == 2:
            size, at = _varint(blob, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        elif kind == 0:
            size = _varint(blob, at)[1] - at
        else:
            raise struct.error(f"protobuf wire type {kind}")
        if at + size > len(blob):
            raise struct.error("a protobuf field ends behind its message")
        if wanted in (0, number):
            yield number, blob[at : at + size]
        at += size


def _varint(blob: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer (7 bits per byte) and the place of the byte after it."""
    value = 0
    for place in range(10):
        if at >= len(blob):
            break
        byte = blob[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise struct.error("a protobuf number has no end")
