"""The server's side of one secure sum: it hands on what clients write to each other, adds up, and opens the sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from torso.errors import RequestError
from torso.federation.secure.crypto import Vector, joined_secret, mask, shared_mask
from torso.federation.secure.notes import Keys
from torso.federation.secure.terms import Terms


class Gathering:
    """Clients may leave at any stage. One that has shared secrets and sends no vector leaves masks in those of its
    neighbours; they are taken off with the shares that these hold."""

    def __init__(self, terms: Terms, clients: Collection[int]) -> None:
        self.terms, self.near = terms, terms.neighbours(clients)
        self.keys: dict[int, Keys] = {}
        self.written: dict[int, dict[int, bytes]] = {}  # by sender, by reader; of those who have shared secrets
        self.sent: list[int] = []  # whose vector is in the sum
        self._total: Vector | None = None

    def enough(self, alive: Collection[int], of: Collection[int] | None = None) -> bool:
        """Whether each of these (those who are alive) has as many neighbours left as it takes to open its secrets."""
        left = set(alive)
        whose = left if of is None else of
        return bool(left) and all(len(self.near[client] & left) >= self.terms.threshold for client in whose)

    def keys_for(self, client: int) -> dict[int, Keys]:
        return {other: self.keys[other] for other in sorted(self.near[client]) if other in self.keys}

    def take_shares(self, client: int, written: Mapping[int, bytes]) -> None:
        wanted = self.keys_for(client).keys() - {client}
        if written.keys() != wanted:
            raise RequestError(f"it has shared with {sorted(written)}. Expected: {sorted(wanted)}")
        self.written[client] = dict(written)

    def shares_for(self, client: int) -> dict[int, bytes]:
        return {sender: texts[client] for sender, texts in self.written.items() if client in texts}

    def take_vector(self, client: int, vector: Vector) -> None:
        self._total = vector.copy() if self._total is None else self._total + vector
        self.sent.append(client)

    def to_unmask(self, client: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of a client's neighbours, those who sent a vector, and those who left after they had shared secrets."""
        near = sorted(self.near[client] & self.written.keys())
        return tuple(k for k in near if k in self.sent), tuple(k for k in near if k not in self.sent)

    def opened(self, shares: Mapping[int, Mapping[int, bytes]]) -> Vector:
        """The sum of the vectors that came. `shares`: by client, what it holds of others."""
        assert self._total is not None
        total, size = self._total, len(self._total)
        for client in self.written:
            held = [given[client] for given in shares.values() if client in given]
            if len(held) < self.terms.threshold:
                raise RequestError(f"{len(held)} shares of a secret came. Expected: {self.terms.threshold} or more")
            secret = joined_secret(held[: self.terms.threshold])
            if client in self.sent:
                total = total - mask(secret, size)
                continue
            for other in sorted(self.near[client] & set(self.sent)):
                common = shared_mask(secret, self.keys[other][0], size)
                total = total - common if other > client else total + common
        return np.asarray(total, dtype=np.uint32)
