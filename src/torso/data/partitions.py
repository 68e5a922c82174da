"""Partitions of samples to clients: shards, IID and writers (spec 10.1, 10.4). Those by Dirichlet are in dirichlet.py.

N clients, C classes, s shards per client, n samples. No function here loops over clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from torso.data.images import Dataset, Ints, Labelled
from torso.data.rows import Rows
from torso.errors import RequestError, running_user_code
from torso.randomness import numpy_generator
from torso.registry import Registry

if TYPE_CHECKING:
    from torso.config import DataConfig


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of every client in both splits, and the clients' names if they have any."""

    train: Rows
    test: Rows
    names: tuple[str, ...] = field(default=(), kw_only=True)


Partitioner = Callable[[Dataset, "DataConfig", int], Partition]
partitions: Registry[Partitioner] = Registry("data.partition")


def deal(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Deal both splits by `data.partition`; if `data.test_shards` > 0, deal the test split independently (spec 9.5)."""
    where = f"data.partition = {options.partition!r}"
    with running_user_code(where, "a function of (dataset, options, seed) that returns a Partition"):
        dealt = partitions[options.partition](dataset, options, seed)
    check_dealt(dealt, dataset, where)
    if options.test_shards:
        rng = numpy_generator(seed, "partition", "test-shards")
        clients, shards_each, samples = len(dealt.train), options.test_shards, len(dataset.test)
        if shards_each > samples:
            raise RequestError(
                f"data.test_shards = {shards_each}: the test set has {samples} samples. Accepted: 0 to {samples}"
            )
        slots = shard_slots(clients, dataset.classes, shards_each, rng, balance=options.balance, key="data.test_shards")
        dealt = replace(dealt, test=deal_shards(dataset.test.labels, slots, clients, dataset.classes, rng))
    empty = np.flatnonzero(dealt.train.sizes == 0)
    if len(empty):
        raise RequestError(
            f"{where} leaves client {empty[0]} without training samples "
            f"({len(empty)} of {len(dealt.train)} clients; {len(dataset.train)} samples in all). "
            "Expected: fewer data.clients, or fewer data.shards per client"
        )
    return dealt


def check_dealt(dealt: Partition, dataset: Dataset, where: str) -> None:
    """Refuse the result of a user's partition if it is not a Partition of existing rows to the same clients."""
    if not isinstance(dealt, Partition):
        raise RequestError(
            f"{where} gave {type(dealt).__name__}. Expected: torso.data.partitions.Partition(train, test), both Rows"
        )
    if len(dealt.train) != len(dealt.test):
        raise RequestError(
            f"{where} deals training data to {len(dealt.train)} clients and test data to {len(dealt.test)}. "
            "Expected: the same clients in both"
        )
    if len(dealt.names) not in (0, len(dealt.train)):
        raise RequestError(
            f"{where} names {len(dealt.names)} of {len(dealt.train)} clients. Expected: a name for each, or none"
        )
    for split, rows, samples in (("train", dealt.train, len(dataset.train)), ("test", dealt.test, len(dataset.test))):
        if len(rows.order) and not 0 <= rows.order.min() <= rows.order.max() < samples:
            raise RequestError(
                f"{where}: rows of {split} are {rows.order.min()} to {rows.order.max()}. Expected: 0 to {samples - 1}"
            )


def clients_of(dataset: Dataset, options: DataConfig) -> int:
    """The value of `data.clients`; refused if it is 0 or exceeds the number of training samples."""
    clients, samples = options.clients, len(dataset.train)
    if not 0 < clients <= samples:
        only = "; 0 works only with data.partition = 'writers' or 'by-client'" if not clients else ""
        raise RequestError(
            f"data.clients = {clients} with data.partition = {options.partition!r}: "
            f"the training set has {samples} samples. Accepted: 1 to {samples}{only}"
        )
    return clients


def check_shards(clients: int, classes: int, shards: int, key: str = "data.shards") -> None:
    """Refuse N·s shards that do not divide among C classes: some samples would be lost unnoticed (spec 10.1)."""
    step = classes // math.gcd(clients, classes)
    if shards % step:
        below = shards // step * step
        accepted = f"{below} or {below + step}" if below else step
        raise RequestError(
            f"{key} = {shards}: {clients} × {shards} shards do not divide among {classes} classes. "
            f"Accepted: {accepted}, or data.balance = true"
        )


def shard_slots(
    clients: int, classes: int, shards: int, rng: np.random.Generator, *, balance: bool, key: str = "data.shards"
) -> Ints:
    """The class of each of N·s slots; slots s·k to s·k + s − 1 are client k's (spec 10.1, step 3)."""
    if not balance:
        check_shards(clients, classes, shards, key)
    elif clients * shards < classes:
        raise RequestError(
            f"{key} = {shards}: {clients} × {shards} shards are fewer than {classes} classes. "
            f"Accepted: {-(-classes // clients)} or more"
        )
    return rng.permutation(np.arange(clients * shards) % classes)


def deal_shards(labels: Ints, slots: Ints, clients: int, classes: int, rng: np.random.Generator) -> Rows:
    """Cut every class into as many pieces as it has slots and deal them at random (spec 10.1, steps 1, 2 and 4)."""
    samples_of_class = Rows.from_owner(labels, classes)
    slots_of_class = Rows.from_owner(slots, classes)
    shards = len(slots) // clients
    owner = np.full(len(labels), -1)
    for c in np.flatnonzero((samples_of_class.sizes > 0) & (slots_of_class.sizes > 0)).tolist():
        holders = rng.permutation(slots_of_class.of(c)) // shards  # the client of each piece
        rows = samples_of_class.of(c)
        owner[rows] = holders[pieces(len(rows), len(holders))]
    return Rows.from_owner(owner, clients)


def pieces(samples: int, count: int) -> Ints:
    """The piece of each sample: equal consecutive pieces; the samples left over go to the first pieces, one each
    (spec 10.1, step 2)."""
    size = samples // count
    rank = np.arange(samples)
    return np.where(rank < size * count, rank // max(size, 1), rank - size * count)


@partitions.register("shards")
def shards(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Clients get `data.shards` pieces of one class each, the same classes in train and test (FedBABU, spec 10.1)."""
    clients, classes = clients_of(dataset, options), dataset.classes
    check_enough(clients, options.shards, len(dataset.train))
    rng = numpy_generator(seed, "partition", "shards")
    slots = shard_slots(clients, classes, options.shards, rng, balance=options.balance)
    return Partition(
        deal_shards(dataset.train.labels, slots, clients, classes, rng),
        deal_shards(dataset.test.labels, slots, clients, classes, rng),
    )


def check_enough(clients: int, shards: int, samples: int) -> None:
    """Refuse more shards than training samples."""
    if clients * shards > samples:
        fewer = f", or data.clients up to {samples // shards}" if shards <= samples else ""
        raise RequestError(
            f"data.shards = {shards} with data.clients = {clients}: {clients} × {shards} shards are more than "
            f"{samples} training samples. Accepted: data.shards up to {samples // clients}{fewer}"
        )


@partitions.register("shards-sorted")
def shards_sorted(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Sorted by label, cut into clients × `data.shards` equal pieces, dealt at random (McMahan et al., spec 10.1)."""
    clients, samples = clients_of(dataset, options), len(dataset.train)
    check_enough(clients, options.shards, samples)
    count = clients * options.shards
    holders = numpy_generator(seed, "partition", "shards-sorted").permutation(count) // options.shards

    def cut(split: Labelled) -> Rows:
        owner = np.empty(len(split), np.int64)
        owner[np.argsort(split.labels, kind="stable")] = holders[np.arange(len(split)) * count // len(split)]
        return Rows.from_owner(owner, clients)

    return Partition(cut(dataset.train), cut(dataset.test))


@partitions.register("iid")
def iid(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Equal random parts; samples that do not divide among the clients are left out (spec 10.4)."""
    clients = clients_of(dataset, options)
    rng = numpy_generator(seed, "partition", "iid")

    def cut(split: Labelled) -> Rows:
        sizes = equal_counts(np.array([len(split)]), clients, rng)[0]
        return Rows.from_sizes(rng.permutation(len(split))[: sizes.sum()], sizes)

    return Partition(cut(dataset.train), cut(dataset.test))


@partitions.register("iid-balanced")
def iid_balanced(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Every client gets the same number of samples of each class (FedFN's IID, spec 10.4)."""
    clients = clients_of(dataset, options)
    rng = numpy_generator(seed, "partition", "iid-balanced")
    totals = np.bincount(dataset.train.labels, minlength=dataset.classes)
    if totals.min() < clients:
        raise RequestError(
            f"data.clients = {clients} with data.partition = 'iid-balanced': class {totals.argmin()} has "
            f"{totals.min()} training samples, fewer than one per client. Accepted: 1 to {totals.min()}"
        )

    def cut(split: Labelled) -> Rows:
        totals = np.bincount(split.labels, minlength=dataset.classes)
        return assign(split.labels, equal_counts(totals, clients, rng), rng)

    return Partition(cut(dataset.train), cut(dataset.test))


@partitions.register("writers")
def writers(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """One client per writer of the training images; `data.clients` > 0 draws that many writers (spec 10.4)."""
    return by_writer(dataset, options, seed, "writers")


@partitions.register("by-client")
def by_client(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """The clients that the data name (`data.csv.client`, or the writers); `data.clients` > 0 draws that many."""
    return by_writer(dataset, options, seed, "clients")


def by_writer(dataset: Dataset, options: DataConfig, seed: int, word: str) -> Partition:
    """One client per writer of the training samples, in the order of their numbers; `word` names them in messages."""
    train_writers, test_writers = dataset.train.writers, dataset.test.writers
    if train_writers is None or test_writers is None:
        missing = "who wrote its images" if word == "writers" else "to which clients its samples belong"
        also = "" if word == "writers" else ", 'csv' with data.csv.client, or 'folder' with CLIENT/CLASS/*.jpg"
        raise RequestError(
            f"data.partition = {options.partition!r}: data.source = {options.source!r} does not say {missing}. "
            f"Accepted: source 'femnist', or 'npz' with train_writers and test_writers{also}"
        )
    chosen = np.unique(train_writers)
    if options.clients > len(chosen):
        raise RequestError(
            f"data.clients = {options.clients} with data.partition = {options.partition!r}: there are {len(chosen)} "
            f"{word}. Accepted: 1 to {len(chosen)}, or 0 for all"
        )
    if options.clients:
        rng = numpy_generator(seed, "partition", "writers")
        chosen = np.sort(rng.choice(chosen, options.clients, replace=False))

    def cut(writers: Ints) -> Rows:
        place = np.searchsorted(chosen, writers).clip(max=len(chosen) - 1)
        return Rows.from_owner(np.where(chosen[place] == writers, place, -1), len(chosen))

    names = tuple(dataset.names[writer] for writer in chosen.tolist()) if dataset.names else ()
    return Partition(cut(train_writers), cut(test_writers), names=names)


def equal_counts(totals: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """Samples of each of K groups for each client [K, N], by the sizes of the groups [K]: equal for all clients. A
    group with fewer than N samples gives one each to random clients."""
    counts = np.repeat(totals[:, None] // clients, clients, axis=1)
    for group in np.flatnonzero(totals < clients):
        counts[group, rng.choice(clients, totals[group], replace=False)] = 1
    return counts


def assign(labels: Ints, counts: Ints, rng: np.random.Generator) -> Rows:
    """Give client k `counts[c, k]` random samples of class c; `counts` [C, N]. The other samples are left out."""
    classes, clients = counts.shape
    samples = Rows.from_owner(labels, classes)
    owner = np.full(len(labels), -1)
    for c in np.flatnonzero(samples.sizes).tolist():
        holders = np.repeat(np.arange(clients), counts[c])
        owner[rng.permutation(samples.of(c))[: len(holders)]] = holders
    return Rows.from_owner(owner, clients)


def long_tail(labels: Ints, classes: int, factor: float, rng: np.random.Generator) -> Ints:
    """The rows that are kept, sorted: at most int(n_max · factor^(−c/(C−1))) random rows of class c (spec 10.4, as in
    LDAM)."""
    samples = Rows.from_owner(labels, classes)
    profile = samples.sizes.max() * factor ** (-np.arange(classes) / max(1, classes - 1))
    keep = np.floor(profile + 1e-9).astype(np.int64)  # 1e-9 corrects rounding: 5000 · 10^-1 must give 500
    return np.sort(np.concatenate([rng.permutation(samples.of(c))[: keep[c]] for c in range(classes)]))
