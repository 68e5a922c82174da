"""Splits for data without a test part: a share of every client's samples is held out, in proportion to its classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torso.data.images import Ints
from torso.randomness import numpy_generator

Floats64 = NDArray[np.float64]


def parted(owner: Ints | None, labels: Ints, share: float) -> tuple[Ints, Ints]:
    """Rows to train on and rows held out, both sorted. They depend neither on the seed nor on other clients' data.

    `owner` [n]: the client of each sample; None: all samples belong to one. Of a client's n samples round(share · n),
    at least one, are held out, in proportion to its classes. One sample of each class of a client stays for training,
    so a client with one sample of each class has no test part."""
    owner = np.zeros(len(labels), np.int64) if owner is None else owner
    key = numpy_generator(0, "test part").random(len(labels))[_places(owner)]
    order = np.lexsort((key, labels, owner))
    is_first = np.ones(len(order), bool)  # whether a row is the first of its client and class
    is_first[1:] = (owner[order][1:] != owner[order][:-1]) | (labels[order][1:] != labels[order][:-1])
    held = [_spread(order[~is_first & (owner[order] == client)], share, size) for client, size in _sizes(owner)]
    out = np.sort(np.concatenate([np.zeros(0, np.int64), *held]))
    return np.setdiff1d(np.arange(len(labels)), out), out


def stratified(group: Ints, share: float, key: Floats64) -> tuple[Ints, Ints]:
    """Rows to keep and rows held out, both sorted. The share is taken of each group, the rows with the smallest keys:
    at least one row of a group of two or more, never a whole group; nothing if the share is 0."""
    order = np.lexsort((key, group))
    sizes = np.bincount(group)
    wanted = np.zeros(len(sizes))  # rows of each group to hold out
    if share:
        wanted = np.clip(np.rint(share * sizes), np.minimum(sizes - 1, 1), sizes - 1)
    out = _places(group[order]) < wanted[group[order]]
    return np.sort(order[~out]), np.sort(order[out])


def _places(group: Ints) -> Ints:
    """The place of each row among the rows of its group."""
    order = np.argsort(group, kind="stable")
    sizes = np.unique(group, return_counts=True)[1]
    places = np.empty(len(group), np.int64)
    places[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _sizes(owner: Ints) -> list[tuple[int, int]]:
    """(client, number of samples) of each client."""
    clients, sizes = np.unique(owner, return_counts=True)
    return list(zip(clients.tolist(), sizes.tolist(), strict=True))


def _spread(spare: Ints, share: float, size: int) -> Ints:
    """Evenly spaced rows of `spare` (what a client can spare, sorted by class); `size`: all samples of the client."""
    count = min(len(spare), max(1, round(share * size)))
    if not count:
        return spare[:0]
    return spare[((np.arange(count) + 0.5) * len(spare) / count).astype(np.int64)]
