"""The interfaces of the transport: bytes to clients, and bytes back. `flower/` implements them; tests have another one
in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

Answer = Callable[[bytes], bytes]
"""A client's message handler: the bytes of a request → the bytes of the reply."""


@dataclass(frozen=True)
class MissingAnswer:
    """A missing answer: the reason why a client has not answered, in words."""

    reason: str


class ServerLink(Protocol):
    """The server's side of the transport, open during a run."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

    def there(self) -> dict[int, str]:
        """The clients that are connected now: number of the connection → name under which its key was admitted.

        A client has the same number as long as its key is admitted. The name is "" if the server asks for no keys."""
        ...

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | MissingAnswer]]:
        """Send a message to each of these connections, and yield (connection, answer) as the answers arrive.

        Each connection is yielded once. The answer is a `MissingAnswer` if none has come within `seconds`, if the
        connection is gone, or if the transport reports an error."""
        ...


class ClientLink(Protocol):
    """A client's side of the transport."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

    def serve(self, answer: Answer) -> None:
        """Answer messages one at a time, until the process is interrupted."""
        ...
