"""Which rows belong to which client, as two arrays (CSR), so that a million clients cost no Python object each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torso.data.images import Ints


@dataclass(frozen=True, eq=False)
class Rows:
    """Client k owns `order[offsets[k]:offsets[k + 1]]`."""

    order: Ints  # [rows that somebody owns]
    offsets: Ints  # [clients + 1]

    @classmethod
    def from_owner(cls, owner: Ints, clients: int) -> Rows:
        """From the client of each row, −1 where nobody owns it; a client's rows stay in data-set order."""
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        return cls.from_sizes(np.argsort(owner, kind="stable")[len(owner) - sizes.sum() :], sizes)

    @classmethod
    def from_sizes(cls, order: Ints, sizes: Ints) -> Rows:
        """From rows that already lie client after client, and how many each client has."""
        return cls(order.astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> Rows:
        order = np.concatenate([np.zeros(0, np.int64), *(np.asarray(rows, np.int64) for rows in lists)])
        return cls.from_sizes(order, np.array([len(rows) for rows in lists], np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, client: int) -> Ints:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)
