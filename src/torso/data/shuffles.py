"""What the randomness of a pass over the data is keyed by: (seed, purpose, round), and the client and epoch that it is
used for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shuffle:
    """What randomness one pass over the data is keyed by."""

    seed: int
    purpose: str
    round: int

    def of(self, place: int) -> Shuffle:
        """The shuffle of the client at a place of the stack."""
        return self

    def for_use(self, use: str) -> Shuffle:
        return replace(self, purpose=f"{self.purpose} {use}")

    def of_places(self, order: Sequence[int]) -> Shuffle:
        """The shuffle of the clients at these places, in this order."""
        return self


@dataclass(frozen=True)
class Shuffles(Shuffle):
    """Clients of several runs in one stack, each with its own run's randomness."""

    each: tuple[Shuffle, ...] = ()

    @classmethod
    def beside(cls, parts: Sequence[tuple[Shuffle, int]]) -> Shuffles:
        """The shuffles of runs that stand side by side, each with so many clients."""
        first = parts[0][0]
        every = tuple(shuffle.of(place) for shuffle, clients in parts for place in range(clients))
        return cls(first.seed, first.purpose, first.round, every)

    def of(self, place: int) -> Shuffle:
        return self.each[place]

    def for_use(self, use: str) -> Shuffle:
        return replace(self, each=tuple(shuffle.for_use(use) for shuffle in self.each))

    def of_places(self, order: Sequence[int]) -> Shuffles:
        return replace(self, each=tuple(self.each[place] for place in order))
