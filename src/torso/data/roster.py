"""What everybody agrees on: all that a server may know of its clients before they have sent anything.

N clients. There is no sample and no label here.
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
    """`sizes`: training samples of each client; the samples of the server's own, where it has any, are counted too."""

    name: str
    classes: int
    input: Input  # the kind of sample
    sizes: Ints  # [N]
    newcomers: Ints  # sorted ids of clients that never train (spec 9.7)
    test_samples: int = 0  # of the server's own test set; 0: it has none
    server_samples: int = 0  # that the server trains on itself (spec 3.3)
    meta_samples: int = 0  # that the server gives to everybody, if a method asks (spec 5.7)
    superclasses: tuple[int, ...] = ()  # of each class, where the data have them
    malicious: frozenset[int] = frozenset()  # clients that attack, where attacks are simulated (spec 9.6)
    names: tuple[str, ...] = ()  # of the clients, where they have any
    remarks: tuple[str, ...] = ()  # what a person should know of the data before the first round
    class_names: tuple[str, ...] = ()  # by their number, where the data know them
    counts_are_known: bool = True  # whether clients tell how many samples of each class they have, for the report

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @cached_property
    def training(self) -> Ints:
        """The clients that train, sorted."""
        return np.setdiff1d(np.arange(self.clients), self.newcomers, assume_unique=True)

    def sizes_of(self, clients: Sequence[int] | Ints) -> Ints:
        """The sizes of a few clients, in time that does not depend on how many there are."""
        return self.sizes[np.asarray(clients, dtype=np.int64)]

    @cached_property
    def samples(self) -> int:
        """Training samples of all clients that train."""
        return int(self.sizes.sum()) - int(self.sizes_of(self.newcomers).sum())
