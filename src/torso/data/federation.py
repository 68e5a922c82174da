"""The data of a run as the rest of Torso sees them: samples once on the device, a row of indices per client.

N clients, C classes; n samples of one kind (inputs.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import augmentations
from torso.data.batches import Deck, sent_to
from torso.data.fit import fitted, read_for
from torso.data.images import Dataset, Ints, Labelled
from torso.data.inputs import Array, Input, Pixels, Tokens
from torso.data.keys import noting, unread
from torso.data.partitions import Partition, deal, long_tail
from torso.data.roster import Roster
from torso.data.rows import Rows
from torso.data.sources import is_seedless
from torso.data.token_lens import lengths_of
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError
from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import DataConfig


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of all clients and whose they are: client k's are `order[offsets[k]:offsets[k + 1]]`."""

    samples: Tensor  # [n, *], as the kind of input is stored
    labels: Tensor  # int64 [n]
    order: Tensor  # int64 [rows that somebody owns]
    offsets: Ints  # [N + 1], on the host

    @property
    def sizes(self) -> Ints:
        """How many samples each client has [N]."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Sequence[int] | Ints) -> Ints:
        """The sizes of a few clients, in time that does not depend on how many there are."""
        chosen = np.asarray(clients, dtype=np.int64)
        return self.offsets[chosen + 1] - self.offsets[chosen]

    def rows(self, client: int) -> Tensor:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def deck(self, clients: Sequence[int]) -> Deck:
        """The samples of G clients, in a few operations however many they are."""
        if len(clients) == 1:
            return Deck.of(self.samples, self.labels, [self.rows(clients[0])], clients)
        sizes, device = self.sizes_of(clients), self.order.device
        first = self.offsets[np.asarray(clients, dtype=np.int64)]
        place = first[:, None] + np.arange(sizes.max(initial=0))
        there = place < (first + sizes)[:, None]
        index = self.order[sent_to(device, np.where(there, place, 0))]
        if not there.all():
            index = index * sent_to(device, there)  # 0 where there is none
        return Deck(self.samples, self.labels, index, tuple(sizes.tolist()), tuple(clients))

    def alone(self, client: int, others: Tensor) -> Split:
        """What one client has, and behind it some rows that are nobody's; the others have nothing."""
        rows = torch.cat([self.rows(client), others])
        offsets = np.zeros_like(self.offsets)
        offsets[client + 1 :] = own = len(rows) - len(others)
        order = torch.arange(own, device=rows.device)
        return Split(self.samples[rows], self.labels[rows], order, offsets)


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients of a simulation with their samples: what a real one has spread over machines, and its roster."""

    name: str
    train: Split
    test: Split
    classes: int
    input: Input  # the kind of sample
    augment: str  # never "auto"
    clients: int
    newcomers: Ints  # sorted ids of clients that never train (spec 9.7)
    server_rows: Tensor  # int64, indices into train.samples; empty: the server has no data (spec 3.3)
    meta_rows: Tensor  # int64, as many of every class: what the server gives to everybody, if a method asks (spec 5.7)
    superclasses: tuple[int, ...] = ()  # of each class, where the data have them (CIFAR-100)
    malicious: frozenset[int] = frozenset()  # clients that attack (spec 9.6)
    marked: Split | None = None  # test samples that attackers have marked; their label is what attackers want
    names: tuple[str, ...] = ()  # of the clients, where the data have them
    remarks: tuple[str, ...] = ()  # what a person should know of the data before the first round
    class_names: tuple[str, ...] = ()  # by their number, where the data know them

    @property
    def device(self) -> torch.device:
        return self.train.labels.device

    def at_site(self, client: int) -> Federation:
        """What one client holds where it is by itself: its samples, and those that everybody got from the server."""
        nobody = self.meta_rows[:0]
        train = self.train.alone(client, self.meta_rows)
        given = torch.arange(len(train.labels) - len(self.meta_rows), len(train.labels), device=nobody.device)
        test = self.test.alone(client, nobody)
        return replace(self, train=train, test=test, server_rows=nobody, meta_rows=given, marked=None)

    @cached_property
    def roster(self) -> Roster:
        """What a server may know of it."""
        return Roster(
            name=self.name,
            classes=self.classes,
            input=self.input,
            sizes=self.train.sizes,
            newcomers=self.newcomers,
            test_samples=len(self.test.labels),
            server_samples=len(self.server_rows),
            meta_samples=len(self.meta_rows),
            superclasses=self.superclasses,
            malicious=self.malicious,
            names=self.names,
            remarks=self.remarks,
            class_names=self.class_names,
        )

    @cached_property
    def test_order(self) -> Tensor:
        """The whole test set in a fixed random order, the same for every run: files are often sorted by class. Token
        sequences go by their length, the longest first, so that a batch has little padding."""
        order = torch.from_numpy(numpy_generator(0, "test order").permutation(len(self.test.labels)))
        order = order.to(self.test.labels.device)
        if not isinstance(self.input, Tokens):
            return order
        lengths = lengths_of(self.test.samples, self.input.pad)
        return order[lengths[order].argsort(descending=True, stable=True)]

    @cached_property
    def class_counts(self) -> Tensor:
        """Training samples per client and class, int64 [N, C], on the data's device; made when first asked for."""
        split = self.train
        sizes = torch.from_numpy(split.sizes).to(split.order.device)
        client = torch.repeat_interleave(torch.arange(self.clients, device=sizes.device), sizes)
        cells = torch.bincount(client * self.classes + split.labels[split.order], minlength=self.clients * self.classes)
        return cells.view(self.clients, self.classes)


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


def seeded(options: DataConfig) -> bool:
    """Whether another seed makes other samples, not only other clients."""
    return not is_seedless(options.source) or options.imbalance != 1 or options.per_class > 0


def dealing_seed(options: DataConfig, seed: int) -> int:
    """The seed of samples and clients: `data.seed`, or the run's."""
    return seed if options.seed < 0 else options.seed


_READ = {
    *("source", "root", "normalize", "size", "imbalance", "imbalance_test", "per_class"),
    *("synthetic", "csv", "text", "npz", "folder"),
}
"""Keys of [data] that say what is read, whoever it is dealt to."""


class Shelf:
    """Data sets that several runs share: read once, and on the device once."""

    def __init__(self) -> None:
        self._read: dict[object, tuple[Dataset, frozenset[str]]] = {}
        self._there: dict[object, Tensor] = {}

    def dataset(self, options: DataConfig, seed: int, read: set[str] | None = None, wants: Wants = ANYTHING) -> Dataset:
        """With its long tail cut, and as a body wants it, whoever it is dealt to; `read` is given the keys that it
        comes from."""
        seed = dealing_seed(options, seed)
        key = options.model_dump_json(include=_READ), seed if seeded(options) else None, wants
        if key not in self._read:
            keys: set[str] = set()
            noted = noting(options, keys)
            found, wanted = read_for(options, seed, keys, wants)
            found = fitted(few(tailed(found, noted, seed), noted, seed), noted, wanted)
            self._read[key] = found, frozenset(keys)
        found, came_from = self._read[key]
        if read is not None:
            read |= came_from
        return found

    def there(self, array: NDArray[Any], device: torch.device) -> Tensor:
        """An array of a data set on the device."""
        key = id(array), device  # the shelf keeps the array, so nobody else gets its id
        if key not in self._there:
            self._there[key] = torch.from_numpy(array).to(device)
        return self._there[key]


def build(
    options: DataConfig, seed: int, device: torch.device, shelf: Shelf | None = None, wants: Wants = ANYTHING
) -> Federation:
    """Load, cut the long tail, deal to clients, and put it all on the device once; `wants`: what the body expects."""
    if options.validation and options.test_shards:
        raise RequestError(
            f"data.validation = {options.validation} measures on training samples that were held out, and "
            f"data.test_shards = {options.test_shards} deals test data. Set one of them to 0"
        )
    shelf, given, read = shelf or Shelf(), options, set[str]()
    dataset = shelf.dataset(given, seed, read, wants)
    options = noting(given, read)
    seed = dealing_seed(options, seed)
    dealt = deal(dataset, options, seed)
    clients = len(dealt.train)
    newcomers = draw_newcomers(clients, options.new_clients, seed)
    augment = dataset.augment if options.augment == "auto" else options.augment
    check_augment(augment, dataset.kind, options.source)
    kept, held = held_out(dealt.train, options.validation, seed)
    if options.validation and not len(held.order):
        raise RequestError(_nothing_held(options.validation, int(dealt.train.sizes.max())))
    train = _split(shelf, dataset.train, kept, device)
    test = _split(shelf, dataset.test, ordered(dealt.test, dataset.test.labels, options, seed), device)
    on_server = draw_server_rows(len(dataset.train), options.server_fraction, seed)
    for_everybody = draw_meta_rows(dataset.train.labels, options.meta_per_class, seed)
    return Federation(
        name=dataset.name,
        train=train,
        test=_apart(train, mixed(held, seed)) if options.validation else test,
        classes=dataset.classes,
        input=dataset.kind.fitted(_held_by(dataset.train, kept, newcomers)),
        augment=augment,
        clients=clients,
        newcomers=newcomers,
        server_rows=torch.from_numpy(np.setdiff1d(on_server, held.order)).to(device),
        meta_rows=torch.from_numpy(np.setdiff1d(for_everybody, held.order)).to(device),
        superclasses=dataset.superclasses,
        names=dealt.names,
        remarks=(*dataset.remarks, *_unused_names(dataset, dealt, options), *_unread(given, read)),
        class_names=dataset.class_names,
    )


def _unused_names(dataset: Dataset, dealt: Partition, options: DataConfig) -> tuple[str, ...]:
    """A word where the data name their clients and the partition does not go by them."""
    if not dataset.names or dealt.names:
        return ()
    return (
        f"data.source = {options.source!r} names {len(dataset.names)} clients, and data.partition = "
        f"{options.partition!r} does not go by them. To do so, set data.partition = by-client",
    )


def _unread(options: DataConfig, read: set[str]) -> tuple[str, ...]:
    """A word for keys that were set to no avail."""
    keys = unread(options, read)
    if not keys:
        return ()
    verb = "is set, but has" if len(keys) == 1 else "are set, but have"
    return (
        f"{', '.join(keys)} {verb} no effect: neither data.source = {options.source!r} nor data.partition = "
        f"{options.partition!r} reads {'it' if len(keys) == 1 else 'them'}",
    )


def _held_by(split: Labelled, rows: Rows, newcomers: Ints) -> Iterator[Array]:
    """The samples of each client that trains, in the order of the clients."""
    late = set(newcomers.tolist())
    return (split.samples[rows.of(client)] for client in range(len(rows)) if client not in late)


def check_augment(name: str, kind: Input, source: str) -> None:
    """Only images can be cropped and mirrored."""
    if augmentations[name].random and not isinstance(kind, Pixels):
        raise RequestError(
            f"data.augment = {name!r} is for images, and data.source = {source!r} gives {kind.words}. "
            "Accepted: auto, none"
        )


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


def _nothing_held(share: float, most: int) -> str:
    """Why there is nothing to measure on where the largest client has `most` training samples."""
    least = math.ceil(10_000 / most) / 10_000  # upwards, so that it does work
    what = f"{least} or more (one sample of the largest client), or 0" if least < 1 else "0, or fewer data.clients"
    return (
        f"data.validation = {share} holds nothing out: no client has more than {most} training "
        f"sample{'' if most == 1 else 's'}. Accepted: {what}"
    )


def _those(rows: Rows, owner: Ints, chosen: NDArray[np.bool_]) -> Rows:
    return Rows.from_sizes(rows.order[chosen], np.bincount(owner[chosen], minlength=len(rows)))


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


def _apart(split: Split, rows: Rows) -> Split:
    """Some of a split's samples as a split of their own: "all of it" then means these."""
    taken = torch.from_numpy(rows.order).to(split.samples.device)
    return Split(split.samples[taken], split.labels[taken], torch.arange(len(taken), device=taken.device), rows.offsets)


def _split(shelf: Shelf, part: Labelled, rows: Rows, device: torch.device) -> Split:
    samples, labels = (shelf.there(array, device) for array in (part.samples, part.labels))
    return Split(samples, labels, torch.from_numpy(rows.order).to(device), rows.offsets)
