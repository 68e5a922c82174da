"""Records in which rounds the replies of each client counted, for the headers of requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torso.federation.protocol import RequestHeader


@dataclass
class ParticipationLog:
    """The rounds in which the replies of each client counted.

    A client keeps its state after every visit. The server tells it which of these states the server's model builds on:
    that of the last round in which the client's reply counted."""

    run: str  # its id
    heard: dict[int, list[int]] = field(default_factory=dict)  # client → rounds in which its reply counted, ascending
    checkpoints: Callable[[], Collection[int]] = tuple  # returns the rounds at which the run can be resumed

    def counted(self, round: int, clients: Sequence[int]) -> None:
        """Record that the replies of these clients counted in a round."""
        for client in clients:
            self.heard.setdefault(client, []).append(round)

    def header(self, kind: Any, client: int, **more: Any) -> RequestHeader:
        """The header of a request to one client, with the round whose state the client must use."""
        heard = self.heard.get(client, [])
        since = heard[-1] if heard else 0
        return RequestHeader(kind=kind, run=self.run, client=client, since=since, back=self._back(heard), **more)

    def _back(self, heard: Sequence[int]) -> tuple[int, ...]:
        """The rounds whose states the client must keep, in case the run is resumed at one of its checkpoints."""
        counts = {bisect_right(heard, round) for round in self.checkpoints()} - {0}
        return tuple(heard[count - 1] for count in sorted(counts))
