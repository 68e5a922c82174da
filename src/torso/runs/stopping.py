"""An engine that can be stopped between groups of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from torso.engine import Engine, Work
from torso.personal.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Stoppable:
    """An engine that calls a function before each group of clients. The function raises an error to stop the work."""

    engine: Engine
    heed: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing: the inner engine is closed by the code that opened it."""

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        self.heed()
        for done, part in enumerate(self.engine.map(work, clients, store)):
            if done:
                self.heed()
            yield part
