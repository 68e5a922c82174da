"""What is drawn beside the partition, each from (seed, its purpose): the order of test samples, what is held out, the
long tail, who never trains, what the server has.
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
    """A client's test rows as `data.test_order` says: mixed, or class by class (spec 9.9)."""
    found = mixed(rows, seed)
    if options.test_order == "mixed":
        return found
    owner = np.repeat(np.arange(len(found)), found.sizes)
    return Rows(found.order[np.lexsort((labels[found.order], owner))], found.offsets)


def mixed(rows: Rows, seed: int) -> Rows:
    """Each client's rows in a random order: class by class, batches would skew BatchNorm's statistics (spec 9.9)."""
    owner = np.repeat(np.arange(len(rows)), rows.sizes)
    key = numpy_generator(seed, "partition", "test order").random(len(rows.order))
    return Rows(rows.order[np.lexsort((key, owner))], rows.offsets)


def held_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Each client's rows in two: what it learns from, and ⌊share · n⌋ of them to choose options by."""
    if not share:
        return rows, Rows(rows.order[:0], np.zeros_like(rows.offsets))
    owner = np.repeat(np.arange(len(rows)), rows.sizes)
    key = numpy_generator(seed, "partition", "validation").random(len(rows.order))
    place = np.arange(len(owner)) - np.repeat(rows.offsets[:-1], rows.sizes)
    out = np.zeros(len(owner), dtype=bool)
    out[np.lexsort((key, owner))] = place < np.floor(share * rows.sizes + 1e-9)[owner]
    return _those(rows, owner, ~out), _those(rows, owner, out)


def tailed(dataset: Dataset, options: DataConfig, seed: int) -> Dataset:
    """The data set with the long tail that `data.imbalance` asks for (spec 10.4)."""
    if options.imbalance == 1:
        return dataset

    def cut(split: Labelled, name: str) -> Labelled:
        rng = numpy_generator(seed, "partition", "long-tail", name)
        return split.take(long_tail(split.labels, dataset.classes, options.imbalance, rng))

    test = cut(dataset.test, "test") if options.imbalance_test else dataset.test
    return replace(dataset, train=cut(dataset.train, "train"), test=test)


def few(dataset: Dataset, options: DataConfig, seed: int) -> Dataset:
    """The data set with as many training samples of each class as `data.per_class` says."""
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
    return replace(dataset, train=dataset.train.take(_per_class(dataset.train.labels, options.per_class, seed, "few")))


def draw_newcomers(clients: int, count: int, seed: int) -> Ints:
    """Which clients never train, sorted (spec 10.4, "50+50")."""
    if count >= clients:
        raise RequestError(
            f"data.new_clients = {count}: of {clients} clients at least one must train. Accepted: 0 to {clients - 1}"
        )
    return _drawn(clients, count, seed, "newcomers")


def draw_server_rows(samples: int, fraction: float, seed: int) -> Ints:
    """A uniform part of the whole training set, whoever owns it, sorted (spec 3.3); never none if some is asked for."""
    return _drawn(samples, max(round(samples * fraction), int(fraction > 0)), seed, "server")


def draw_meta_rows(labels: Ints, per_class: int, seed: int) -> Ints:
    """As many training samples of every class, whoever owns them; all of a class that has fewer (spec 5.7)."""
    return _per_class(labels, per_class, seed, "meta")


def _per_class(labels: Ints, per_class: int, seed: int, purpose: str) -> Ints:
    """Rows, sorted: so many of every class, or all of a class that has fewer."""
    order = numpy_generator(seed, "partition", purpose).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its class
    return np.sort(by_class[place < per_class]).astype(np.int64)


def _drawn(total: int, count: int, seed: int, purpose: str) -> Ints:
    return np.sort(numpy_generator(seed, "partition", purpose).choice(total, count, replace=False)).astype(np.int64)


def _those(rows: Rows, owner: Ints, chosen: NDArray[np.bool_]) -> Rows:
    return Rows.from_sizes(rows.order[chosen], np.bincount(owner[chosen], minlength=len(rows)))
