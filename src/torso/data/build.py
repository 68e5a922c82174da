"""`build` makes the federation of the section `data`: load, cut the long tail, deal to clients, move to the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import augmentations
from torso.data.draws import (
    draw_meta_rows,
    draw_newcomers,
    draw_server_rows,
    held_out,
    limited_per_class,
    mixed,
    ordered,
    with_long_tail,
)
from torso.data.federation import Federation, Split
from torso.data.fit import fitted, read_for
from torso.data.images import Dataset, Ints, Labelled, Samples
from torso.data.inputs import Array, Input, Pixels
from torso.data.keys import recording_reads, unread
from torso.data.partitions import Partition, deal
from torso.data.rows import Rows
from torso.data.sources import is_seedless
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig


def seeded(options: DataConfig) -> bool:
    """Whether the seed changes the samples themselves, not only how they are dealt to clients."""
    return not is_seedless(options.source) or options.imbalance != 1 or options.per_class > 0


def dealing_seed(options: DataConfig, seed: int) -> int:
    """The seed of samples and partition: `data.seed`, or the run's seed if `data.seed` is −1."""
    return seed if options.seed < 0 else options.seed


_READ = {
    *("source", "root", "normalize", "size", "imbalance", "imbalance_test", "per_class"),
    *("synthetic", "csv", "text", "npz", "folder"),
}
"""Keys of the section `data` that decide which samples are read, not how they are dealt to clients."""


class DataCache:
    """A cache of data sets for runs of one process: each data set is read once and moved to the device once."""

    def __init__(self) -> None:
        self._read: dict[object, tuple[Dataset, frozenset[str]]] = {}  # data sets and the config keys that they used
        self._on_device: dict[object, Tensor] = {}  # arrays on devices

    def dataset(self, options: DataConfig, seed: int, read: set[str] | None = None, wants: Wants = ANYTHING) -> Dataset:
        """The data set before it is dealt to clients: long tail cut, fitted to what the body wants. The config keys
        that it depends on are added to `read`."""
        seed = dealing_seed(options, seed)
        key = options.model_dump_json(include=_READ), seed if seeded(options) else None, wants
        if key not in self._read:
            keys: set[str] = set()
            recorded = recording_reads(options, keys)
            found, wanted = read_for(options, seed, keys, wants)
            found = with_long_tail(found, recorded, seed)
            found = limited_per_class(found, recorded, seed)
            found = fitted(found, recorded, wanted)
            self._read[key] = found, frozenset(keys)
        found, used_keys = self._read[key]
        if read is not None:
            read |= used_keys
        return found

    def on_device(self, array: NDArray[Any], device: torch.device) -> Tensor:
        """An array of a data set on the device."""
        key = id(array), device  # `_read` keeps the array alive, so no other object gets its id
        if key not in self._on_device:
            self._on_device[key] = torch.from_numpy(array).to(device)
        return self._on_device[key]


def build(
    options: DataConfig, seed: int, device: torch.device, data_cache: DataCache | None = None, wants: Wants = ANYTHING
) -> Federation:
    """The federation that the options describe, on the device.

    `data_cache`: a cache that several runs share. `wants`: what the body expects of the samples."""
    if options.validation and options.test_shards:
        raise RequestError(
            f"data.validation = {options.validation} measures on training samples that were held out, and "
            f"data.test_shards = {options.test_shards} deals test data. Set one of them to 0"
        )
    data_cache = data_cache or DataCache()
    given = options
    read: set[str] = set()  # config keys that had an effect
    dataset = data_cache.dataset(given, seed, read, wants)
    options = recording_reads(given, read)
    seed = dealing_seed(options, seed)
    dealt = deal(dataset, options, seed)
    clients = len(dealt.train)
    newcomers = draw_newcomers(clients, options.new_clients, seed)
    augment = dataset.augment if options.augment == "auto" else options.augment
    check_augment(augment, dataset.kind, options.source)
    kept, held = held_out(dealt.train, options.validation, seed)
    if options.validation and not len(held.order):
        raise RequestError(_nothing_held(options.validation, int(dealt.train.sizes.max())))
    train = _split(data_cache, dataset.train, kept, device)
    test = _split(data_cache, dataset.test, ordered(dealt.test, dataset.test.labels, options, seed), device)
    on_server = draw_server_rows(len(dataset.train), options.server_fraction, seed)
    for_everybody = draw_meta_rows(dataset.train.labels, options.meta_per_class, seed)
    return Federation(
        name=dataset.name,
        train=train,
        test=_own_split(train, mixed(held, seed)) if options.validation else test,
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
        encoding=wants.encoding,
    )


def _unused_names(dataset: Dataset, dealt: Partition, options: DataConfig) -> tuple[str, ...]:
    """A remark if the data name their clients but the partition does not use them."""
    if not dataset.names or dealt.names:
        return ()
    return (
        f"data.source = {options.source!r} names {len(dataset.names)} clients, and data.partition = "
        f"{options.partition!r} does not use them. To use them, set data.partition = by-client",
    )


def _unread(options: DataConfig, read: set[str]) -> tuple[str, ...]:
    """A remark if keys are set that have no effect."""
    keys = unread(options, read)
    if not keys:
        return ()
    verb, pronoun = ("is set, but has", "it") if len(keys) == 1 else ("are set, but have", "them")
    return (
        f"{', '.join(keys)} {verb} no effect: neither data.source = {options.source!r} nor data.partition = "
        f"{options.partition!r} reads {pronoun}",
    )


def _held_by(split: Labelled, rows: Rows, newcomers: Ints) -> Iterator[Array]:
    """The samples of each client that trains, in the order of the clients."""
    new = set(newcomers.tolist())
    return (split.samples[rows.of(client)] for client in range(len(rows)) if client not in new)


def check_augment(name: str, kind: Input, source: str) -> None:
    """Refuse an augmentation that crops or mirrors if the samples are not images."""
    if augmentations[name].random and not isinstance(kind, Pixels):
        raise RequestError(
            f"data.augment = {name!r} is for images, and data.source = {source!r} gives {kind.words}. "
            "Accepted: auto, none"
        )


def _nothing_held(share: float, most: int) -> str:
    """The message for a share that holds out no sample; the largest client has `most` training samples."""
    least = math.ceil(10_000 / most) / 10_000  # rounded up, so that this share does hold out a sample
    accepted = f"{least} or more (one sample of the largest client), or 0" if least < 1 else "0, or fewer data.clients"
    return (
        f"data.validation = {share} holds nothing out: no client has more than {most} training "
        f"sample{'' if most == 1 else 's'}. Accepted: {accepted}"
    )


def _own_split(split: Split, rows: Rows) -> Split:
    """A new split with copies of these rows only."""
    taken = torch.from_numpy(rows.order).to(split.samples.device)
    origins = None if split.origins is None else split.origins[taken]
    order = torch.arange(len(taken), device=taken.device)
    return Split(split.samples[taken], split.labels[taken], order, rows.offsets, origins)


def _split(data_cache: DataCache, part: Labelled, rows: Rows, device: torch.device) -> Split:
    samples = data_cache.on_device(part.samples, device)
    labels = data_cache.on_device(part.labels, device)
    origins = None
    if isinstance(part, Samples) and part.origins is not None:
        origins = data_cache.on_device(part.origins, device)
    return Split(samples, labels, torch.from_numpy(rows.order).to(device), rows.offsets, origins)
