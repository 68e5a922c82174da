"""`Roster`: what the server may know of its clients before they have sent anything. It has no samples and no labels.

N clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torso.data.images import Ints
from torso.data.inputs import Input


@dataclass(frozen=True, eq=False)
class Roster:
    """The server's knowledge of a federation: data set, kind of input, sizes and names of clients, who is new."""

    name: str  # of the data set
    classes: int
    input: Input  # the kind of sample
    sizes: Ints  # [N], training samples of each client, including those that the server also has
    newcomers: Ints  # sorted ids of clients that never train (spec 9.7)
    test_samples: int = 0  # size of the server's own test set; 0: it has none
    server_samples: int = 0  # number of samples that the server trains on itself (spec 3.3)
    meta_samples: int = 0  # number of samples that the server gives to all clients, if the method uses them (spec 5.7)
    superclasses: tuple[int, ...] = ()  # of each class, if the data have them
    malicious: frozenset[int] = frozenset()  # clients that attack, if attacks are simulated (spec 9.6)
    names: tuple[str, ...] = ()  # of the clients, if they have names
    remarks: tuple[str, ...] = ()  # sentences about the data that the user should read before the first round
    class_names: tuple[str, ...] = ()  # by class number, if known
    counts_are_known: bool = True  # whether clients tell their number of samples per class, for the report

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @cached_property
    def training(self) -> Ints:
        """The ids of the clients that train, sorted."""
        return np.setdiff1d(np.arange(self.clients), self.newcomers, assume_unique=True)

    def sizes_of(self, clients: Sequence[int] | Ints) -> Ints:
        """The sizes of some clients, in time that does not depend on N."""
        return self.sizes[np.asarray(clients, dtype=np.int64)]

    @cached_property
    def samples(self) -> int:
        """Number of training samples of all clients that train."""
        return int(self.sizes.sum()) - int(self.sizes_of(self.newcomers).sum())
