"""Traits of a federation from class counts [N, C] (N clients, C classes): client sizes, and how much labels differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Traits:
    """Sizes and label distributions of the clients."""

    clients: int
    classes: int
    samples: int  # training samples of all clients
    smallest: int  # samples of the smallest client
    median: float
    largest: int
    shift: float  # total variation distance of a client's labels to all labels, 0 (alike) to 1; mean over clients
    effective_classes: float  # exp of the entropy of a client's labels, mean over clients
    missing: float  # share of the classes of which a client has no sample, mean over clients

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The traits in lines, for a terminal."""
        return [
            f"{self.clients} clients, {self.samples} training samples, {self.classes} classes",
            f"samples of a client: {self.smallest} to {self.largest}, median {self.median:g}",
            f"labels: a client has {self.effective_classes:.1f} effective classes and no samples of "
            f"{100 * self.missing:.0f} % of the classes; label shift {self.shift:.2f} (0: alike, 1: disjoint)",
        ]


def traits_of(counts: Counts) -> Traits:
    """The traits of clients with these class counts [N, C]. Means are over clients that have samples."""
    sizes = counts.sum(axis=1)
    nonempty = counts[sizes > 0].astype(np.float64)
    shares = nonempty / nonempty.sum(axis=1, keepdims=True)
    pooled = nonempty.sum(axis=0) / nonempty.sum()
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
        missing=round(float((nonempty == 0).mean()), 4),
    )
