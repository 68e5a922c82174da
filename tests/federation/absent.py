"""A simulation in which some clients do not answer in some rounds: what a federation with faults must come to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

from torso.engine import EngineFactory, OneByOne
from torso.personal.store import Store
from torso.runs.visit import Visit

Rounds = Mapping[int, Collection[int]]
"""Round → clients."""


class Absent:
    """`silent`: who is asked in a round and does not answer; `away`: who is not even there when it begins."""

    def __init__(self, engine: OneByOne, clients: int, silent: Rounds, away: Rounds) -> None:
        self.engine, self.clients, self.silent, self.away = engine, clients, silent, away
        self.round = 0

    def __enter__(self) -> Self:
        self.engine.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.__exit__(*exc)

    def available_clients(self) -> Collection[int]:
        return set(range(self.clients)) - set(self.away.get(self.round + 1, ()))

    def counted(self, round: int, clients: Sequence[int]) -> None:
        self.round = round

    def map(self, work: Any, clients: Sequence[int], store: Store | None = None) -> Iterator[Any]:
        lost = self.silent.get(work.told.round, ()) if isinstance(work, Visit) else ()
        return self.engine.map(work, [client for client in clients if client not in lost], store)


def absent(silent: Rounds, away: Rounds | None = None) -> EngineFactory:
    """What stands in for `run.engine`."""
    return lambda net, federation, run: Absent(
        OneByOne(net, federation, workers=1), federation.clients, silent, away or {}
    )
