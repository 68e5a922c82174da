"""What the two sides need of the wire: bytes to clients and bytes back. Flower's is in `flower/`; tests have one in
memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

Answer = Callable[[bytes], bytes]
"""What a client does with a message: the bytes of the answer."""


@dataclass(frozen=True)
class Silence:
    """Why a client has not answered, in words."""

    reason: str


class ServerLink(Protocol):
    """The server's end, open while a run goes on."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

    def there(self) -> dict[int, str]:
        """The clients that are connected now: the number of each connection (the same for a client as long as its key
        is admitted), and the name under which the key was admitted; "" where nobody is asked for a key."""
        ...

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Silence]]:
        """Send each of them its message; their answers as they come. Who has not answered after so many seconds, whose
        connection is gone, or whose answer is an error of the wire: a `Silence`. Everybody is yielded once."""
        ...


class ClientLink(Protocol):
    """A client's end."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

    def serve(self, answer: Answer) -> None:
        """Wait for messages and answer them, one at a time, until somebody interrupts."""
        ...
