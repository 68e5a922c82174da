"""A client's samples in the order in which it meets them: G clients side by side, ragged sizes exact.

A deck holds the sample indices of G clients, padded to the longest. Shuffles and augmentations come from
(seed, purpose, round, client, epoch), so neither the engine nor the company in a stack changes what a client sees.
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

KeyedBy = bool | Literal["device"]  # whether batches have keys on the host, or on the device
LAST = torch.iinfo(torch.int64).max  # what padding is sorted by


def samples_met(sizes: Sequence[int], batch_size: int, skip_single: bool) -> tuple[int, ...]:
    """Samples that clients of these sizes meet in an epoch.

    `skip_single`: a last batch of one is left out, since BatchNorm would see one value per channel (spec 12.2)."""
    if not skip_single:
        return tuple(sizes)
    return tuple([size - (size % batch_size == 1) for size in sizes])


def epoch_steps(sizes: Sequence[int], batch_size: int, skip_single: bool) -> tuple[int, ...]:
    """Optimiser steps of an epoch of clients of these sizes."""
    return tuple([-(-size // batch_size) for size in samples_met(sizes, batch_size, skip_single)])


@dataclass(frozen=True)
class Deck:
    """Sample indices of G clients [G, n] into one split, with the real sizes."""

    samples: Tensor  # [n, *], as they are stored
    labels: Tensor
    index: Tensor  # [G, n], padded with any valid index
    sizes: tuple[int, ...]
    clients: tuple[int, ...]

    @classmethod
    def of(cls, samples: Tensor, labels: Tensor, rows: Sequence[Tensor], clients: Sequence[int]) -> Deck:
        index = rows[0][None] if len(rows) == 1 else torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        return cls(samples, labels, index, tuple(len(row) for row in rows), tuple(clients))

    @classmethod
    def beside(cls, decks: Sequence[Deck]) -> Deck:
        """Decks of the same samples side by side, as one of all their clients."""
        first, longest = decks[0], max(deck.index.shape[1] for deck in decks)
        index = torch.cat([torch.nn.functional.pad(deck.index, (0, longest - deck.index.shape[1])) for deck in decks])
        sizes, clients = (sum(parts, ()) for parts in zip(*((d.sizes, d.clients) for d in decks), strict=True))
        return cls(first.samples, first.labels, index, sizes, clients)

    def rows(self, first: int, last: int) -> Deck:
        """The clients at the places from `first` to before `last`, padded to the longest of them."""
        sizes = self.sizes[first:last]
        return replace(self, index=self.index[first:last, : max(sizes)], sizes=sizes, clients=self.clients[first:last])

    def joined(self, rows: Tensor) -> Deck:
        """Each client's samples and, behind them, the same rows for all."""
        every = [torch.cat([mine[:size], rows]) for mine, size in zip(self.index, self.sizes, strict=True)]
        return Deck.of(self.samples, self.labels, every, self.clients)

    def by_class(self) -> Deck:
        """Each client's samples class after class, as they stand within a class."""
        mine = [row[:size] for row, size in zip(self.index, self.sizes, strict=True)]
        rows = [row[self.labels[row].argsort(stable=True)] for row in mine]
        return Deck.of(self.samples, self.labels, rows, self.clients)

    def parted(self, share: float, seed: int) -> tuple[Deck, Deck]:
        """Each client's samples in two: what it learns from, and ⌊share · n⌋ held out, drawn once and for all."""
        bits = random_bits(self._keys(Shuffle(seed, "validation", 0), "hold out", 0), self.index.shape[1])
        kept, held = [], []
        for row, size, mine in zip(bits, self.sizes, self.index, strict=True):
            order = mine[:size][row[:size].argsort(stable=True)]
            cut = size - math.floor(share * size + 1e-9)
            kept.append(order[:cut])
            held.append(order[cut:])
        return (
            Deck.of(self.samples, self.labels, kept, self.clients),
            Deck.of(self.samples, self.labels, held, self.clients),
        )

    def class_counts(self, classes: int) -> Tensor:
        """How many samples each client has of each class [G, C]."""
        counts = torch.zeros(len(self.sizes), classes, dtype=torch.int64, device=self.index.device)
        if min(self.sizes, default=0) == self.index.shape[1]:  # no padding
            return counts.scatter_add_(1, self.labels[self.index], torch.ones_like(self.index))
        sizes = on_device(self.index.device, self.sizes).unsqueeze(-1)
        real = torch.arange(self.index.shape[1], device=self.index.device) < sizes
        return counts.scatter_add_(1, self.labels[self.index], real.to(torch.int64))

    def steps(self, batch_size: int, skip_single: bool = False) -> tuple[int, ...]:
        """Optimiser steps of an epoch, per client."""
        return epoch_steps(self.sizes, batch_size, skip_single)

    def longest_first(self, batch_size: int, skip_single: bool, by_size: bool = False) -> list[int] | None:
        """Places of the clients, those with the most steps (or samples) first; None where they stand so already."""
        steps = self.used(batch_size, skip_single) if by_size else self.steps(batch_size, skip_single)
        if min(steps) == max(steps):
            return None
        order = sorted(range(len(steps)), key=lambda place: -steps[place])  # stable
        return None if order == list(range(len(steps))) else order

    def of_places(self, order: Sequence[int], places: Tensor) -> Deck:
        """The clients at these places (the same twice: here and on the device), in this order."""
        sizes, clients = ([kept[place] for place in order] for kept in (self.sizes, self.clients))
        return replace(self, index=self.index[places], sizes=tuple(sizes), clients=tuple(clients))

    def used(self, batch_size: int, skip_single: bool) -> tuple[int, ...]:
        """Samples met in an epoch, per client."""
        return samples_met(self.sizes, batch_size, skip_single)

    def in_order(self, batch_size: int, lens: Lens) -> Iterator[Batch]:
        """Evaluation: fixed order, no augmentation (spec 9.9)."""
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
        """Training: a fresh permutation per epoch; `ceil(n / B)` batches, the last one may be short (spec 1.2).

        `keyed`: whether batches have keys, for a network that draws, and where they are."""
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
            most = -(-max(self.sizes) // batch_size)
            steps = random_bits(self._keys(how, "drop", epoch), max(most, 1))  # [G, steps]
            return (replace(b, keys=steps[:, step]) for step, b in enumerate(batches))
        return (replace(b, keys=self._key_list(how, "dropout", epoch, step)) for step, b in enumerate(batches))

    def endless(
        self,
        batch_size: int,
        lens: Lens,
        how: Shuffle,
        change: Augmentation | None,
        skip_single: bool = False,
        keyed: KeyedBy = False,
    ) -> Iterator[Batch]:
        """Training batches of one epoch after the other, without end."""
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
        """One key for each client; `when`: the epoch, and the step where each has its own."""
        if type(how) is Shuffle:
            return tuple(client_keys((how.seed, how.purpose, use, how.round), self.clients, *when).tolist())
        mine = ((how.of(place), client) for place, client in enumerate(self.clients))
        return tuple(key(its.seed, its.purpose, use, its.round, client, *when) for its, client in mine)

    def _deal(
        self,
        order: Tensor,
        sizes: Sequence[int],
        batch_size: int,
        lens: Lens,
        change: Augmentation | None,
        coins: Tensor | None,
    ) -> Iterator[Batch]:
        columns = lens.widths(self.samples, order, batch_size)
        pad = lens.pad if isinstance(lens, TokenLens) else 0
        labels = self.labels[order]  # at once: for one client a batch's are a part of it, without a launch
        for start in range(0, max(sizes), batch_size):
            samples = self.samples if columns is None else self.samples[:, : columns[start // batch_size]]
            width = min(batch_size, max(sizes) - start)
            index = order[:, start : start + width]
            bits = None if coins is None else coins[:, start : start + width]
            filled = [min(max(size - start, 0), width) for size in sizes]
            real = active = lead = None
            if min(filled) < width:
                count = on_device(order.device, filled).unsqueeze(-1)
                real = (torch.arange(width, device=order.device) < count).float()
            if min(filled) == 0:
                active, with_any = count.squeeze(-1) > 0, sum(map(bool, filled))
                lead = with_any if all(filled[:with_any]) else None
            inputs = lens.look(samples, index, change, bits)
            yield Batch(inputs, labels[:, start : start + width].contiguous(), real, active, lead, pad=pad)
