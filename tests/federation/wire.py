"""Clients for tests of the wire: they do as a message says. `python -m tests.federation.wire DIR NAME` is one as a
process of its own; `joined` has one in a thread."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torso.errors import RequestError
from torso.federation.flower.client import FlowerClientLink
from torso.federation.folder import ClientFolder

PATIENCE = 120.0  # seconds; on a quiet machine nothing here takes ten


def obey(message: bytes) -> bytes:
    """The message backwards, unless it says otherwise."""
    word, _, rest = message.partition(b" ")
    if word == b"fail":
        raise ValueError("patient 17 is in this text")
    if word == b"refuse":
        raise RequestError("data.size = 3 is not accepted.\nAccepted: 8")
    if word == b"sleep":
        time.sleep(float(rest))
    return message[::-1]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for it, generously."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Joined(threading.Thread):
    """A client in a thread: what it `got`, and the `error` that `serve` has ended with."""

    def __init__(self, link: FlowerClientLink) -> None:
        super().__init__(daemon=True)
        self.link = link
        self.error: BaseException | None = None
        self.got: list[bytes] = []

    def run(self) -> None:
        def answer(message: bytes) -> bytes:
            self.got.append(message)
            return obey(message)

        try:
            self.link.serve(answer)
        except BaseException as error:
            self.error = error


@contextmanager
def joined(place: ClientFolder, name: str, printed: list[str] | None = None) -> Iterator[Joined]:
    with FlowerClientLink(place, name, (printed if printed is not None else []).append) as link:
        client = Joined(link)
        client.start()
        yield client


if __name__ == "__main__":
    with FlowerClientLink(ClientFolder.open(sys.argv[1]), sys.argv[2]) as own:
        print("connected", flush=True)
        own.serve(obey)
