"""`Deck`: the sample indices of G clients, and the batches that are made of them.

A deck is padded to the client with the most samples. Shuffles and augmentations are functions of (seed, purpose, round,
client, epoch), so neither the engine nor the other clients of a stack change what a client sees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import Augmentation, Lens
from torso.data.batch import Batch
from torso.data.sending import on_device, sent_to
from torso.data.shuffles import Shuffle, Shuffles
from torso.data.token_lens import TokenLens
from torso.randomness import client_keys, key, random_bits

__all__ = ["LAST", "Batch", "Deck", "KeyedBy", "Shuffle", "Shuffles", "epoch_steps", "samples_met"]

KeyedBy = bool | Literal["device"]  # whether batches have keys: False: no, True: on the host, "device": on the device
LAST = torch.iinfo(torch.int64).max  # sort key of padding: it comes after all samples


def samples_met(sizes: Sequence[int], batch_size: int, skip_single: bool) -> tuple[int, ...]:
    """Number of samples that each client uses in an epoch.

    `skip_single`: a last batch of one sample is left out: BatchNorm would see one value per channel (spec 12.2)."""
    if not skip_single:
        return tuple(sizes)
    return tuple([size - (size % batch_size == 1) for size in sizes])


def epoch_steps(sizes: Sequence[int], batch_size: int, skip_single: bool) -> tuple[int, ...]:
    """Number of optimiser steps of each client in an epoch."""
    return tuple([-(-size // batch_size) for size in samples_met(sizes, batch_size, skip_single)])


@dataclass(frozen=True)
class Deck:
    """The samples of G clients: indices into one split, padded to the largest client, and the clients' real sizes."""

    samples: Tensor  # [n, *], the whole split as it is stored
    labels: Tensor  # [n]
    index: Tensor  # [G, largest size], padded with any valid index
    sizes: tuple[int, ...]
    clients: tuple[int, ...]

    @classmethod
    def of(cls, samples: Tensor, labels: Tensor, rows: Sequence[Tensor], clients: Sequence[int]) -> Deck:
        index = rows[0][None] if len(rows) == 1 else torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        return cls(samples, labels, index, tuple(len(row) for row in rows), tuple(clients))

    @classmethod
    def beside(cls, decks: Sequence[Deck]) -> Deck:
        """One deck of the clients of several decks over the same split."""
        first = decks[0]
        widest = max(deck.index.shape[1] for deck in decks)
        index = torch.cat([torch.nn.functional.pad(deck.index, (0, widest - deck.index.shape[1])) for deck in decks])
        sizes = tuple(size for deck in decks for size in deck.sizes)
        clients = tuple(client for deck in decks for client in deck.clients)
        return cls(first.samples, first.labels, index, sizes, clients)

    def rows(self, first: int, last: int) -> Deck:
        """The deck of the clients at places first, …, last − 1, padded to the largest of them."""
        sizes = self.sizes[first:last]
        return replace(self, index=self.index[first:last, : max(sizes)], sizes=sizes, clients=self.clients[first:last])

    def with_rows(self, rows: Tensor) -> Deck:
        """The deck with the same rows appended to the samples of every client."""
        every = [torch.cat([own[:size], rows]) for own, size in zip(self.index, self.sizes, strict=True)]
        return Deck.of(self.samples, self.labels, every, self.clients)

    def by_class(self) -> Deck:
        """The deck with each client's samples sorted by class; the order within a class does not change."""
        own = [row[:size] for row, size in zip(self.index, self.sizes, strict=True)]
        rows = [row[self.labels[row].argsort(stable=True)] for row in own]
        return Deck.of(self.samples, self.labels, rows, self.clients)

    def split_off(self, share: float, seed: int) -> tuple[Deck, Deck]:
        """Split each client's samples into a deck to train on and one of ⌊share · n⌋ held-out samples. The draw depends
        on seed and client only, so it is the same in every round."""
        bits = random_bits(self._keys(Shuffle(seed, "validation", 0), "hold out", 0), self.index.shape[1])
        kept, held = [], []
        for row, size, own in zip(bits, self.sizes, self.index, strict=True):
            order = own[:size][row[:size].argsort(stable=True)]
            cut = size - math.floor(share * size + 1e-9)
            kept.append(order[:cut])
            held.append(order[cut:])
        return (
            Deck.of(self.samples, self.labels, kept, self.clients),
            Deck.of(self.samples, self.labels, held, self.clients),
        )

    def class_counts(self, classes: int) -> Tensor:
        """Number of samples of each client in each class [G, C]."""
        counts = torch.zeros(len(self.sizes), classes, dtype=torch.int64, device=self.index.device)
        if min(self.sizes, default=0) == self.index.shape[1]:  # no padding
            return counts.scatter_add_(1, self.labels[self.index], torch.ones_like(self.index))
        sizes = on_device(self.index.device, self.sizes).unsqueeze(-1)
        real = torch.arange(self.index.shape[1], device=self.index.device) < sizes
        return counts.scatter_add_(1, self.labels[self.index], real.to(torch.int64))

    def steps(self, batch_size: int, skip_single: bool = False) -> tuple[int, ...]:
        """Number of optimiser steps of each client in an epoch."""
        return epoch_steps(self.sizes, batch_size, skip_single)

    def longest_first(self, batch_size: int, skip_single: bool, by_size: bool = False) -> list[int] | None:
        """The places of the clients, sorted by most steps (`by_size`: most samples) first; None: already sorted."""
        steps = self.used(batch_size, skip_single) if by_size else self.steps(batch_size, skip_single)
        if min(steps) == max(steps):
            return None
        order = sorted(range(len(steps)), key=lambda place: -steps[place])  # stable
        return None if order == list(range(len(steps))) else order

    def of_places(self, order: Sequence[int], places: Tensor) -> Deck:
        """The deck of the clients at these places, in this order. `order` and `places` are the same numbers, on the
        host and on the device."""
        sizes = tuple([self.sizes[place] for place in order])
        clients = tuple([self.clients[place] for place in order])
        return replace(self, index=self.index[places], sizes=sizes, clients=clients)

    def used(self, batch_size: int, skip_single: bool) -> tuple[int, ...]:
        """Number of samples that each client uses in an epoch."""
        return samples_met(self.sizes, batch_size, skip_single)

    def in_order(self, batch_size: int, lens: Lens) -> Iterator[Batch]:
        """Batches for evaluation: fixed order, no augmentation (spec 9.9)."""
        return self._deal(self.index, self.sizes, batch_size, lens, None, None)

    def shuffled(
        self,
        batch_size: int,
        lens: Lens,
        how: Shuffle,
        epoch: int,
        change: Augmentation | None,
        skip_single: bool = False,
        keyed: KeyedBy = False,
    ) -> Iterator[Batch]:
        """Batches of one training epoch: a new permutation per epoch, `ceil(n / B)` batches, the last one may be short
        (spec 1.2).

        `keyed`: whether and where batches have keys, for a network that draws random numbers."""
        columns = self.index.shape[1]
        bits = random_bits(self._keys(how, "shuffle", epoch), columns)
        positions = torch.arange(columns, device=bits.device)
        if min(self.sizes) < columns:
            sizes = on_device(bits.device, self.sizes).unsqueeze(-1)
            bits = torch.where(positions < sizes, bits, LAST)  # padding sorts to the end
        order = self.index.gather(1, bits.argsort(dim=1, stable=True))
        draws = change is not None and change.random
        coins = random_bits(self._keys(how, "augment", epoch), columns) if draws else None
        batches = self._deal(order, self.used(batch_size, skip_single), batch_size, lens, change, coins)
        if not keyed:
            return batches
        if keyed == "device":
            most_steps = -(-max(self.sizes) // batch_size)
            keys = random_bits(self._keys(how, "drop", epoch), max(most_steps, 1))  # [G, steps]
            return (replace(batch, keys=keys[:, step]) for step, batch in enumerate(batches))
        return (replace(batch, keys=self._key_list(how, "dropout", epoch, step)) for step, batch in enumerate(batches))

    def endless(
        self,
        batch_size: int,
        lens: Lens,
        how: Shuffle,
        change: Augmentation | None,
        skip_single: bool = False,
        keyed: KeyedBy = False,
    ) -> Iterator[Batch]:
        """Training batches of epochs 0, 1, …, without end."""
        for epoch in itertools.count():
            yield from self.shuffled(batch_size, lens, how, epoch, change, skip_single, keyed)

    def _keys(self, how: Shuffle, use: str, epoch: int) -> Tensor:
        return sent_to(self.index.device, self.key_array(how, use, epoch))

    def key_array(self, how: Shuffle, use: str, epoch: int) -> NDArray[np.int64]:
        """One key for each client [G], on the host."""
        if type(how) is not Shuffle:
            return np.array(self._key_list(how, use, epoch), dtype=np.int64)
        return client_keys((how.seed, how.purpose, use, how.round), self.clients, epoch)

    def _key_list(self, how: Shuffle, use: str, *when: int) -> tuple[int, ...]:
        """One key for each client; `when`: the epoch, and the step if each step has its own key."""
        if type(how) is Shuffle:
            return tuple(client_keys((how.seed, how.purpose, use, how.round), self.clients, *when).tolist())
        pairs = ((how.of(place), client) for place, client in enumerate(self.clients))
        return tuple(key(own.seed, own.purpose, use, own.round, client, *when) for own, client in pairs)

    def _deal(
        self,
        order: Tensor,
        sizes: Sequence[int],
        batch_size: int,
        lens: Lens,
        change: Augmentation | None,
        coins: Tensor | None,
    ) -> Iterator[Batch]:
        """The batches of sample indices `order` [G, n]; `coins` [G, n] decide how an augmentation changes a sample."""
        columns = lens.widths(self.samples, order, batch_size)
        pad = lens.pad if isinstance(lens, TokenLens) else 0
        labels = self.labels[order]  # gathered once: for one client, a batch's labels are then a view without a launch
        for start in range(0, max(sizes), batch_size):
            samples = self.samples if columns is None else self.samples[:, : columns[start // batch_size]]
            width = min(batch_size, max(sizes) - start)
            index = order[:, start : start + width]
            bits = None if coins is None else coins[:, start : start + width]
            filled = [min(max(size - start, 0), width) for size in sizes]  # real samples of each client in this batch
            real = active = lead = None
            if min(filled) < width:
                count = on_device(order.device, filled).unsqueeze(-1)
                real = (torch.arange(width, device=order.device) < count).float()
            if min(filled) == 0:
                active = count.squeeze(-1) > 0
                active_clients = sum(map(bool, filled))
                lead = active_clients if all(filled[:active_clients]) else None
            inputs = lens.look(samples, index, change, bits)
            yield Batch(inputs, labels[:, start : start + width].contiguous(), real, active, lead, pad=pad)
