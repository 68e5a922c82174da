"""`Shuffle`: the keys (seed, purpose, round) of the random numbers of a pass over the data. Client and epoch are added
where the numbers are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shuffle:
    """The keys of the random numbers of one pass over the data, the same for all clients of a stack."""

    seed: int
    purpose: str
    round: int

    def of(self, place: int) -> Shuffle:
        """The shuffle of the client at a place of the stack."""
        return self

    def for_use(self, use: str) -> Shuffle:
        """A shuffle with other random numbers, for another use of the same data."""
        return replace(self, purpose=f"{self.purpose} {use}")

    def of_places(self, order: Sequence[int]) -> Shuffle:
        """The shuffle of the clients at these places, in this order."""
        return self


@dataclass(frozen=True)
class Shuffles(Shuffle):
    """The shuffle of a stack with clients of several runs: each client has the keys of its own run."""

    each: tuple[Shuffle, ...] = ()  # [G]

    @classmethod
    def beside(cls, parts: Sequence[tuple[Shuffle, int]]) -> Shuffles:
        """The shuffle of several runs in one stack; `parts`: the shuffle of each run and its number of clients."""
        first = parts[0][0]
        every = tuple(shuffle.of(place) for shuffle, clients in parts for place in range(clients))
        return cls(first.seed, first.purpose, first.round, every)

    def of(self, place: int) -> Shuffle:
        return self.each[place]

    def for_use(self, use: str) -> Shuffle:
        return replace(self, each=tuple(shuffle.for_use(use) for shuffle in self.each))

    def of_places(self, order: Sequence[int]) -> Shuffles:
        return replace(self, each=tuple(self.each[place] for place in order))
