"""The data of a run as the rest of Torso sees them: samples once on the device, a row of indices per client.

N clients, C classes; n samples of one kind (inputs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torso.data.batches import Deck
from torso.data.images import Ints
from torso.data.inputs import Input, Tokens
from torso.data.roster import Roster
from torso.data.sending import sent_to
from torso.data.token_lens import lengths_of
from torso.data.wants import Encoding
from torso.randomness import numpy_generator


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of all clients and whose they are: client k's are `order[offsets[k]:offsets[k + 1]]`."""

    samples: Tensor  # [n, *], as the kind of input is stored
    labels: Tensor  # int64 [n]
    order: Tensor  # int64 [rows that somebody owns]
    offsets: Ints  # [N + 1], on the host
    origins: Tensor | None = None  # int64 [n]: checksums of what samples were made from, where an encoder made them

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
        origins = None if self.origins is None else self.origins[rows]
        return Split(self.samples[rows], self.labels[rows], order, offsets, origins)


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
    encoding: Encoding | None = None  # what made the samples, where an encoder did

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
        """What a server may know of the federation."""
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
