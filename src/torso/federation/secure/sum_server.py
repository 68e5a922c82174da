"""The server's side of one secure sum: forwards shares, adds up masked vectors, and removes the masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from torso.errors import RequestError
from torso.federation.secure.crypto import Vector, joined_secret, mask, shared_mask
from torso.federation.secure.sum_messages import Keys
from torso.federation.secure.terms import SharingParameters


class SumServer:
    """The server's state of one secure sum.

    Clients may leave at any stage. If a client has shared its secrets but sends no vector, its masks are still in the
    vectors of its neighbours. The server removes them with the shares that the neighbours hold."""

    def __init__(self, terms: SharingParameters, clients: Collection[int]) -> None:
        self.terms = terms
        self.near = terms.neighbours(clients)  # client → its neighbours and itself
        self.keys: dict[int, Keys] = {}  # by client
        self.written: dict[int, dict[int, bytes]] = {}  # sender → receiver → encrypted shares
        self.sent: list[int] = []  # clients whose vector is in the sum
        self._total: Vector | None = None  # sum of the masked vectors

    def enough(self, alive: Collection[int], of: Collection[int] | None = None) -> bool:
        """Whether the clients that are alive can open the secrets of the clients `of` (None: of all that are alive)."""
        left = set(alive)
        clients = left if of is None else of
        return bool(left) and all(len(self.near[client] & left) >= self.terms.threshold for client in clients)

    def keys_for(self, client: int) -> dict[int, Keys]:
        """The public keys of a client's neighbours."""
        return {other: self.keys[other] for other in sorted(self.near[client]) if other in self.keys}

    def take_shares(self, client: int, written: Mapping[int, bytes]) -> None:
        """Store the encrypted shares that a client has made for its neighbours."""
        wanted = self.keys_for(client).keys() - {client}
        if written.keys() != wanted:
            raise RequestError(f"it has shared with {sorted(written)}. Expected: {sorted(wanted)}")
        self.written[client] = dict(written)

    def shares_for(self, client: int) -> dict[int, bytes]:
        """The encrypted shares for a client, by sender."""
        return {sender: texts[client] for sender, texts in self.written.items() if client in texts}

    def take_vector(self, client: int, vector: Vector) -> None:
        """Add a client's masked vector."""
        self._total = vector.copy() if self._total is None else self._total + vector
        self.sent.append(client)

    def to_unmask(self, client: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A client's neighbours that sent a vector, and those that shared secrets but sent none."""
        near = sorted(self.near[client] & self.written.keys())
        return tuple(k for k in near if k in self.sent), tuple(k for k in near if k not in self.sent)

    def opened(self, shares: Mapping[int, Mapping[int, bytes]]) -> Vector:
        """The sum of the vectors without masks. `shares`: client → neighbour → share of a secret of the neighbour."""
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
