"""An engine that looks, between groups of clients, whether the run is to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from torso.engine import Engine, Work
from torso.personal.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Stoppable:
    """`heed` is called before each group; it raises where somebody wants an end."""

    engine: Engine
    heed: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """The engine's own end is that of whoever opened it."""

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        self.heed()
        for done, part in enumerate(self.engine.map(work, clients, store)):
            if done:
                self.heed()
            yield part
