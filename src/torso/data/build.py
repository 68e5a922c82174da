"""From options to a federation: load, cut the long tail, deal to clients, put it all on the device once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import augmentations
from torso.data.draws import draw_meta_rows, draw_newcomers, draw_server_rows, few, held_out, mixed, ordered, tailed
from torso.data.federation import Federation, Split
from torso.data.fit import fitted, read_for
from torso.data.images import Dataset, Ints, Labelled, Samples
from torso.data.inputs import Array, Input, Pixels
from torso.data.keys import noting, unread
from torso.data.partitions import Partition, deal
from torso.data.rows import Rows
from torso.data.sources import is_seedless
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig


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
        encoding=wants.encoding,
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


def _nothing_held(share: float, most: int) -> str:
    """Why there is nothing to measure on where the largest client has `most` training samples."""
    least = math.ceil(10_000 / most) / 10_000  # upwards, so that it does work
    what = f"{least} or more (one sample of the largest client), or 0" if least < 1 else "0, or fewer data.clients"
    return (
        f"data.validation = {share} holds nothing out: no client has more than {most} training "
        f"sample{'' if most == 1 else 's'}. Accepted: {what}"
    )


def _apart(split: Split, rows: Rows) -> Split:
    """Some of a split's samples as a split of their own: "all of it" then means these."""
    taken = torch.from_numpy(rows.order).to(split.samples.device)
    origins = None if split.origins is None else split.origins[taken]
    order = torch.arange(len(taken), device=taken.device)
    return Split(split.samples[taken], split.labels[taken], order, rows.offsets, origins)


def _split(shelf: Shelf, part: Labelled, rows: Rows, device: torch.device) -> Split:
    samples, labels = (shelf.there(array, device) for array in (part.samples, part.labels))
    made_from = part.origins if isinstance(part, Samples) else None
    origins = None if made_from is None else shelf.there(made_from, device)
    return Split(samples, labels, torch.from_numpy(rows.order).to(device), rows.offsets, origins)
