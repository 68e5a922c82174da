"""A test part for data that have none: a share of every client's samples, of each class in proportion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torso.data.images import Ints
from torso.randomness import numpy_generator

Floats64 = NDArray[np.float64]


def parted(owner: Ints | None, labels: Ints, share: float) -> tuple[Ints, Ints]:
    """Rows to train on and rows held out, both sorted; the same for every seed, whatever other clients have.

    Of the n samples of a client round(share · n), at least one, spread over its classes in proportion. One sample of
    each class of a client stays to train on, so a client with one sample of each class has no test part."""
    owner = np.zeros(len(labels), np.int64) if owner is None else owner
    key = numpy_generator(0, "test part").random(len(labels))[_places(owner)]
    order = np.lexsort((key, labels, owner))
    first = np.ones(len(order), bool)  # of its client and class
    first[1:] = (owner[order][1:] != owner[order][:-1]) | (labels[order][1:] != labels[order][:-1])
    held = [_spread(order[~first & (owner[order] == client)], share, size) for client, size in _sizes(owner)]
    out = np.sort(np.concatenate([np.zeros(0, np.int64), *held]))
    return np.setdiff1d(np.arange(len(labels)), out), out


def stratified(group: Ints, share: float, key: Floats64) -> tuple[Ints, Ints]:
    """Rows to keep and rows held out, both sorted: of every group a share (0: none), the rows with the smallest keys;
    at least one of two or more rows, and never all of them."""
    order = np.lexsort((key, group))
    sizes = np.bincount(group)
    wanted = np.clip(np.rint(share * sizes), np.minimum(sizes - 1, 1), sizes - 1) if share else np.zeros(len(sizes))
    out = _places(group[order]) < wanted[group[order]]
    return np.sort(order[~out]), np.sort(order[out])


def _places(group: Ints) -> Ints:
    """The place of each row among those of its group."""
    order = np.argsort(group, kind="stable")
    sizes = np.unique(group, return_counts=True)[1]
    places = np.empty(len(group), np.int64)
    places[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _sizes(owner: Ints) -> list[tuple[int, int]]:
    clients, sizes = np.unique(owner, return_counts=True)
    return list(zip(clients.tolist(), sizes.tolist(), strict=True))


def _spread(spare: Ints, share: float, size: int) -> Ints:
    """Evenly spaced rows of those that a client can spare, which lie class by class."""
    count = min(len(spare), max(1, round(share * size)))
    if not count:
        return spare[:0]
    return spare[((np.arange(count) + 0.5) * len(spare) / count).astype(np.int64)]
