"""What class counts tell: sizes of clients, and how far their labels differ. Pure functions of counts [N, C].

N clients, C classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Traits:
    """`shift`: total variation distance between the labels of a client and of all clients, from 0 (alike) to 1; mean
    over clients. `effective_classes`: exp of the entropy of a client's labels, mean over clients."""

    clients: int
    classes: int
    samples: int
    smallest: int
    median: float
    largest: int
    shift: float
    effective_classes: float
    missing: float  # share of the classes of which a client has no sample, mean over clients

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        return [
            f"{self.clients} clients, {self.samples} training samples, {self.classes} classes",
            f"samples of a client: {self.smallest} to {self.largest}, median {self.median:g}",
            f"labels: a client has {self.effective_classes:.1f} effective classes and lacks {100 * self.missing:.0f} % "
            f"of the classes; distance from the labels of all clients {self.shift:.2f} (0: alike, 1: disjoint)",
        ]


def traits_of(counts: Counts) -> Traits:
    sizes = counts.sum(axis=1)
    there = counts[sizes > 0].astype(np.float64)
    shares = there / there.sum(axis=1, keepdims=True)
    pooled = there.sum(axis=0) / there.sum()
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return Traits(
        clients=len(counts),
        classes=counts.shape[1],
        samples=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        shift=round(float(np.abs(shares - pooled).sum(axis=1).mean() / 2), 4),
        effective_classes=round(float(np.exp(-(shares * logs).sum(axis=1)).mean()), 4),
        missing=round(float((there == 0).mean()), 4),
    )
