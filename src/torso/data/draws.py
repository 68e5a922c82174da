"""Random draws besides the partition: order of test samples, held-out samples, long tail, new clients, server samples.

Each is a function of (seed, its purpose).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torso.data.images import Dataset, Ints, Labelled
from torso.data.partitions import long_tail
from torso.data.rows import Rows
from torso.errors import RequestError
from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import DataConfig


def ordered(rows: Rows, labels: Ints, options: DataConfig, seed: int) -> Rows:
    """Each client's test rows in the order of `data.test_order`: mixed, or class by class (spec 9.9)."""
    shuffled = mixed(rows, seed)
    if options.test_order == "mixed":
        return shuffled
    owner = np.repeat(np.arange(len(shuffled)), shuffled.sizes)
    return Rows(shuffled.order[np.lexsort((labels[shuffled.order], owner))], shuffled.offsets)


def mixed(rows: Rows, seed: int) -> Rows:
    """Each client's rows in a random order. Batches of single classes would skew BatchNorm's statistics (spec 9.9)."""
    owner = np.repeat(np.arange(len(rows)), rows.sizes)
    key = numpy_generator(seed, "partition", "test order").random(len(rows.order))
    return Rows(rows.order[np.lexsort((key, owner))], rows.offsets)


def held_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Split each client's rows into rows to train on and ⌊share · n⌋ validation rows, by which options are chosen."""
    if not share:
        return rows, Rows(rows.order[:0], np.zeros_like(rows.offsets))
    owner = np.repeat(np.arange(len(rows)), rows.sizes)
    key = numpy_generator(seed, "partition", "validation").random(len(rows.order))
    place = np.arange(len(owner)) - np.repeat(rows.offsets[:-1], rows.sizes)
    is_held = np.zeros(len(owner), dtype=bool)
    is_held[np.lexsort((key, owner))] = place < np.floor(share * rows.sizes + 1e-9)[owner]
    return _selected(rows, owner, ~is_held), _selected(rows, owner, is_held)


def with_long_tail(dataset: Dataset, options: DataConfig, seed: int) -> Dataset:
    """The data set cut to the long tail of `data.imbalance` (spec 10.4)."""
    if options.imbalance == 1:
        return dataset

    def cut(split: Labelled, name: str) -> Labelled:
        rng = numpy_generator(seed, "partition", "long-tail", name)
        return split.take(long_tail(split.labels, dataset.classes, options.imbalance, rng))

    test = cut(dataset.test, "test") if options.imbalance_test else dataset.test
    return replace(dataset, train=cut(dataset.train, "train"), test=test)


def limited_per_class(dataset: Dataset, options: DataConfig, seed: int) -> Dataset:
    """The data set with `data.per_class` training samples of each class; 0: unchanged."""
    if not options.per_class:
        return dataset
    counts = np.bincount(dataset.train.labels, minlength=dataset.classes)
    least = int(counts.argmin())
    if counts[least] < options.per_class:
        name = repr(dataset.class_names[least]) if dataset.class_names else least
        raise RequestError(
            f"data.per_class = {options.per_class}: class {name} has {counts[least]} training samples. "
            f"Accepted: 0 (all of them) to {counts[least]}"
        )
    rows = _per_class(dataset.train.labels, options.per_class, seed, "few")
    return replace(dataset, train=dataset.train.take(rows))


def draw_newcomers(clients: int, count: int, seed: int) -> Ints:
    """The new clients, which never train, sorted (spec 10.4, "50+50")."""
    if count >= clients:
        raise RequestError(
            f"data.new_clients = {count}: of {clients} clients at least one must train. Accepted: 0 to {clients - 1}"
        )
    return _drawn(clients, count, seed, "newcomers")


def draw_server_rows(samples: int, fraction: float, seed: int) -> Ints:
    """The server's training rows, sorted: drawn uniformly from all clients' samples (spec 3.3); at least one if
    `fraction` > 0."""
    count = round(samples * fraction)
    if fraction > 0:
        count = max(count, 1)
    return _drawn(samples, count, seed, "server")


def draw_meta_rows(labels: Ints, per_class: int, seed: int) -> Ints:
    """`per_class` training rows of every class from all clients' samples; all of a class that has fewer (spec 5.7)."""
    return _per_class(labels, per_class, seed, "meta")


def _per_class(labels: Ints, per_class: int, seed: int, purpose: str) -> Ints:
    """`per_class` random rows of every class, or all of a class that has fewer; sorted."""
    order = numpy_generator(seed, "partition", purpose).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its class
    return np.sort(by_class[place < per_class]).astype(np.int64)


def _drawn(total: int, count: int, seed: int, purpose: str) -> Ints:
    return np.sort(numpy_generator(seed, "partition", purpose).choice(total, count, replace=False)).astype(np.int64)


def _selected(rows: Rows, owner: Ints, chosen: NDArray[np.bool_]) -> Rows:
    return Rows.from_sizes(rows.order[chosen], np.bincount(owner[chosen], minlength=len(rows)))
