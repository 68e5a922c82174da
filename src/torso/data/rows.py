"""`Rows`: the rows of every client in two arrays (CSR format), so that a million clients need no Python object each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torso.data.images import Ints


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of every client: client k owns `order[offsets[k]:offsets[k + 1]]`."""

    order: Ints  # [rows that belong to a client]
    offsets: Ints  # [clients + 1]

    @classmethod
    def from_owner(cls, owner: Ints, clients: int) -> Rows:
        """Rows by the client of each row; −1: the row belongs to no client. A client's rows stay in data-set order."""
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        return cls.from_sizes(np.argsort(owner, kind="stable")[len(owner) - sizes.sum() :], sizes)

    @classmethod
    def from_sizes(cls, order: Ints, sizes: Ints) -> Rows:
        """Rows by `order`, in which they are already sorted by client, and the number of rows of each client."""
        return cls(order.astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> Rows:
        """Rows by a list of the rows of each client."""
        order = np.concatenate([np.zeros(0, np.int64), *(np.asarray(rows, np.int64) for rows in lists)])
        return cls.from_sizes(order, np.array([len(rows) for rows in lists], np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, client: int) -> Ints:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)
