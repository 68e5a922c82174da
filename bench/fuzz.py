"""A fuzz test: random mutations of real requests and replies, read by the decoders and checks at the network.

    python bench/fuzz.py [--mutations 100000] [--seed 0] [--out bench/fuzz.json]

A mutated message must be used, or refused with a RequestError of one line: no other exception, at most 10 s of CPU, and
no more memory than a small multiple of the message. The memory of the process is limited, too, so that a request for
gigabytes ends it. The exit status is 1 if one of these rules is broken. The mutations: tests/federation/mutations.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import flwr
import pydantic
import safetensors
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict  # noqa: E402
from tests.federation.mutations import Recorded, mutated, recorded  # noqa: E402

from torso.errors import RequestError  # noqa: E402
from torso.federation.connected_clients import _introduced  # noqa: E402
from torso.federation.flower.admission import parse_key_status  # noqa: E402
from torso.federation.flower.payload import NotOurs, unpack  # noqa: E402
from torso.federation.mismatches import misfit_alone  # noqa: E402
from torso.federation.protocol import Reply, Request  # noqa: E402
from torso.runs.messages import Message, schema_of  # noqa: E402
from torso.runs.uploads import UploadTerms  # noqa: E402

METHODS = ("scaffold", "fedper", "fedfomo", "fedncm")
ROOM = 1 << 30  # bytes of address space beyond what the process has when it begins
SECONDS = 10  # of CPU: the machine may be busy
TIMES, BESIDE = 32, 32 * 2**20  # how often a message's size it may take, and what else
STANDING = b'{"state": "admitted", "words": "it is admitted", "name": "a", "clock": 0.0, "server": "00ff"}'


class TooLong(BaseException):
    """Raised after the time limit. No decoder may catch it."""


def ring(*_: object) -> None:
    raise TooLong


def request(data: bytes, home: Any) -> None:
    """Read a request as a client does."""
    Request.decode(data)


def answered(data: bytes, home: Any) -> None:
    Reply.decode(home.answer(data))


def reply(data: bytes, home: Any) -> None:
    Reply.decode(data)


def upload(data: bytes, terms: UploadTerms) -> None:
    found = Reply.decode(data)
    if found.header.numbers is None:
        raise RequestError("it has no numbers")
    (client,) = terms.samples
    terms.checked(Message(found.header.numbers, found.tensors), client)


def description(data: bytes, _: Any) -> None:
    misfit_alone(*_introduced(data, ""))


def standing(data: bytes, _: Any) -> None:
    try:
        parse_key_status(data)
    except ValueError as error:
        raise RequestError(str(error)) from None


def terms_of(data: bytes) -> UploadTerms:
    """The schema of an upload, from the real one."""
    found = Reply.decode(data)
    assert found.header.numbers is not None
    numbers = found.header.numbers
    offered = len(found.tensors["said/scores"]) if "said/scores" in found.tensors else 0
    forms = {offered: schema_of(found.tensors)}
    return UploadTerms(numbers.round, forms, {numbers.client: offered}, {numbers.client: numbers.samples})


class Flowers:
    """A message of Flower's, as far as `unpack` looks at it."""

    def __init__(self, rng: Random) -> None:
        kinds: tuple[Callable[[], Any], ...] = (
            lambda: ConfigRecord({rng.choice(("bytes", "x")): rng.choice((b"x", 1, "x", [1.0], b"x" * 5_000_000))}),
            lambda: MetricRecord({"bytes": rng.choice((1, 2.5, [1, 2]))}),
            lambda: ArrayRecord({rng.choice(("bytes", "x")): self._array(rng)}),
        )
        self.content = RecordDict(
            {rng.choice(("torso", "x")): rng.choice(kinds)() for _ in range(rng.choice((0, 1, 1, 2)))}
        )

    @staticmethod
    def _array(rng: Random) -> Array:
        shape = rng.choice(((3,), (2**62,), (-1,), (0,), (1, 3), ()))
        return Array(
            dtype=rng.choice(("uint8", "float32")),
            shape=shape,
            stype=rng.choice(("torso", "numpy.ndarray")),
            data=b"abc",
        )


def flowers(rng: Random) -> str:
    try:
        unpack(Flowers(rng))  # type: ignore[arg-type]
    except NotOurs:
        return "refused"
    return "used"


def memory(line: str) -> int:
    """Bytes that a line of Linux's status of this process tells: VmRSS now, VmHWM at most since `forget`."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split(f"{line}:", 1)[1].split(None, 1)[0])


def forget() -> None:
    """The most memory that the process has had is what it has now."""
    Path("/proc/self/clear_refs").write_text("5")


class Tally:
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.broken: list[str] = []
        self.slowest, self.largest = 0.0, 0.0

    def read(self, what: str, size: int, call: Callable[[], None]) -> None:
        """Read a message: whether it was refused or used, or what else happened."""
        forget()
        before, began = memory("VmRSS"), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            call()
            outcome = "used"
        except RequestError:
            outcome = "refused"
        except TooLong:
            outcome = "took too long"
        except Exception as error:  # what this is about
            outcome = f"{type(error).__name__}: {error}"[:200]
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.slowest = max(self.slowest, time.process_time() - began)
        grown = memory("VmHWM") - before
        self.largest = max(self.largest, grown)
        if outcome in ("used", "refused") and grown > TIMES * size + BESIDE:
            outcome = f"took {grown} bytes for {size}"
        self.seen[outcome if outcome in ("used", "refused") else "broken"] += 1
        if outcome not in ("used", "refused"):
            self.broken.append(f"{what}: {outcome}")


def targets(wires: dict[str, Recorded]) -> list[tuple[str, bytes, Callable[[bytes, Any], None], Any]]:
    """A list of (name, a real message, the function that reads it, its second argument)."""
    found: list[tuple[str, bytes, Callable[[bytes, Any], None], Any]] = []
    for method, wire in wires.items():
        found += [(f"request {kind}, {method}", data, request, None) for kind, data in wire.requests.items()]
        found += [(f"reply to {kind}, {method}", data, reply, None) for kind, data in wire.replies.items()]
        if "told" in wire.replies:
            found += [(f"upload, {method}", wire.replies["told"], upload, terms_of(wire.replies["told"]))] * 3
    found += [("description", wires["fedper"].replies["who"], description, None)] * 3
    return [*found, ("standing", STANDING, standing, None)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, ring)
    with tempfile.TemporaryDirectory() as folder:
        wires = {method: recorded(method, Path(folder) / method) for method in METHODS}
        every = targets(wires)
        home = wires["fedper"].homes["client-1"]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        tallies: dict[str, Tally] = {}
        began = time.perf_counter()
        for number in range(options.mutations):
            rng = Random(f"{options.seed} {number}")
            name, message, reads, beside = rng.choice(every)
            if reads is request and rng.random() < 0.05 and "fedper" in name:
                reads, beside = answered, home
            how, data = mutated(message, rng) if reads is not standing else ("bytes", bytes_of(message, rng))
            tally = tallies.setdefault(how, Tally())
            tally.read(f"mutation {number}, {name}, {how}", len(data), lambda r=reads, d=data, b=beside: r(d, b))
        for number in range(options.mutations // 100):
            tally = tallies.setdefault("records of Flower", Tally())
            rng = Random(f"{options.seed} flower {number}")
            tally.read(f"flower {number}", 5_000_000, lambda r=rng: None if flowers(r) == "used" else refuse())
    return report(tallies, options, time.perf_counter() - began)


def refuse() -> None:
    raise RequestError("")


def bytes_of(text: bytes, rng: Random) -> bytes:
    found = bytearray(text)
    for _ in range(rng.choice((1, 2, 8))):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found[: rng.choice((len(found), rng.randrange(len(found))))])


def report(tallies: dict[str, Tally], options: argparse.Namespace, seconds: float) -> int:
    broken = [line for tally in tallies.values() for line in tally.broken]
    print(f"{'mutation':24} {'n':>8} {'refused':>8} {'used':>8} {'broken':>7} {'slowest ms':>11} {'largest MiB':>12}")
    rows = []
    for how, tally in sorted(tallies.items()):
        seen = tally.seen
        row = {"n": seen.total(), **{key: seen[key] for key in ("refused", "used", "broken")}}
        row |= {"slowest_ms": round(1000 * tally.slowest, 1), "largest_mib": round(tally.largest / 2**20, 1)}
        print(f"{how:24} " + " ".join(f"{v:>{w}}" for v, w in zip(row.values(), (8, 8, 8, 7, 11, 12), strict=True)))
        rows.append({"mutation": how, **row})
    for line in broken[:20]:
        print(line)
    found = {
        "what": "mutations of real requests and replies; slowest_ms of CPU, largest_mib by which the process grew",
        "mutations": options.mutations,
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "rows": rows,
        "broken": broken[:100],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {
            "python": platform.python_version(),
            **{each.__name__: each.__version__ for each in (torch, pydantic, safetensors, flwr)},
        },
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
