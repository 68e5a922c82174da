"""What the server of a federation remembers of its letters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torso.federation.letters import Question


@dataclass
class Book:
    """In which rounds the answers of each client counted, and which rounds the run may go back to."""

    run: str
    heard: dict[int, list[int]] = field(default_factory=dict)  # client → those rounds, ascending
    checkpoints: Callable[[], Collection[int]] = tuple  # the rounds that the run may be resumed at

    def counted(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            self.heard.setdefault(client, []).append(round)

    def question(self, kind: Any, client: int, **more: Any) -> Question:
        """What one client is asked, with the state that it is to answer from."""
        heard = self.heard.get(client, [])
        since = heard[-1] if heard else 0
        return Question(kind=kind, run=self.run, client=client, since=since, back=self._back(heard), **more)

    def _back(self, heard: Sequence[int]) -> tuple[int, ...]:
        """The rounds whose states a client would go on from if the run were resumed at one of its checkpoints."""
        places = {bisect_right(heard, round) for round in self.checkpoints()} - {0}
        return tuple(heard[place - 1] for place in sorted(places))
