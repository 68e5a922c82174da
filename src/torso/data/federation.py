"""`Federation`: the data of a run. All samples lie on the device once; each client has a row of indices.

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
    """The training or test samples of all clients. Client k has rows `order[offsets[k]:offsets[k + 1]]`."""

    samples: Tensor  # [n, *], as the kind of input is stored
    labels: Tensor  # int64 [n]
    order: Tensor  # int64 [rows that belong to a client]
    offsets: Ints  # [N + 1], on the host
    origins: Tensor | None = None  # int64 [n]: checksums of the samples that an encoder made these features from

    @property
    def sizes(self) -> Ints:
        """Number of samples of each client [N]."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Sequence[int] | Ints) -> Ints:
        """The sizes of some clients, in time that does not depend on N."""
        chosen = np.asarray(clients, dtype=np.int64)
        return self.offsets[chosen + 1] - self.offsets[chosen]

    def rows(self, client: int) -> Tensor:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def deck(self, clients: Sequence[int]) -> Deck:
        """The samples of G clients as a deck, in a few tensor operations for any G."""
        if len(clients) == 1:
            return Deck.of(self.samples, self.labels, [self.rows(clients[0])], clients)
        device = self.order.device
        sizes = self.sizes_of(clients)
        first = self.offsets[np.asarray(clients, dtype=np.int64)]
        place = first[:, None] + np.arange(sizes.max(initial=0))  # [G, largest size], places in `order`
        is_real = place < (first + sizes)[:, None]
        index = self.order[sent_to(device, np.where(is_real, place, 0))]
        if not is_real.all():
            index = index * sent_to(device, is_real)  # padding is index 0
        return Deck(self.samples, self.labels, index, tuple(sizes.tolist()), tuple(clients))

    def of_one_client(self, client: int, others: Tensor) -> Split:
        """A split with the samples of one client only, followed by the rows `others`, which belong to no client."""
        rows = torch.cat([self.rows(client), others])
        own = len(rows) - len(others)
        offsets = np.zeros_like(self.offsets)
        offsets[client + 1 :] = own
        order = torch.arange(own, device=rows.device)
        origins = None if self.origins is None else self.origins[rows]
        return Split(self.samples[rows], self.labels[rows], order, offsets, origins)


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients of a simulation with their samples. In a real federation these are spread over machines."""

    name: str  # of the data set
    train: Split
    test: Split
    classes: int
    input: Input  # the kind of sample
    augment: str  # registered name of the augmentation, never "auto"
    clients: int
    newcomers: Ints  # sorted ids of clients that never train (spec 9.7)
    server_rows: Tensor  # int64, indices into train.samples; empty: the server has no data (spec 3.3)
    meta_rows: Tensor  # int64, equally many of every class; the server gives them to all clients on demand (spec 5.7)
    superclasses: tuple[int, ...] = ()  # of each class, if the data have them (CIFAR-100)
    malicious: frozenset[int] = frozenset()  # clients that attack (spec 9.6)
    marked: Split | None = None  # test samples with the attackers' mark, labelled with the class that attackers want
    names: tuple[str, ...] = ()  # of the clients, if the data have them
    remarks: tuple[str, ...] = ()  # sentences about the data that the user should read before the first round
    class_names: tuple[str, ...] = ()  # by class number, if known
    encoding: Encoding | None = None  # the encoder that made the samples, if one did

    @property
    def device(self) -> torch.device:
        return self.train.labels.device

    def at_site(self, client: int) -> Federation:
        """The federation as one client's machine holds it: only this client's samples and those from the server."""
        no_rows = self.meta_rows[:0]
        train = self.train.of_one_client(client, self.meta_rows)
        meta_rows = torch.arange(len(train.labels) - len(self.meta_rows), len(train.labels), device=no_rows.device)
        test = self.test.of_one_client(client, no_rows)
        return replace(self, train=train, test=test, server_rows=no_rows, meta_rows=meta_rows, marked=None)

    @cached_property
    def roster(self) -> Roster:
        """What the server may know of the federation."""
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
        """The order in which the whole test set is evaluated: random, because files are often sorted by class, and the
        same for every run. Token sequences are sorted by length, longest first, so that a batch has little padding."""
        order = torch.from_numpy(numpy_generator(0, "test order").permutation(len(self.test.labels)))
        order = order.to(self.test.labels.device)
        if not isinstance(self.input, Tokens):
            return order
        lengths = lengths_of(self.test.samples, self.input.pad)
        return order[lengths[order].argsort(descending=True, stable=True)]

    @cached_property
    def class_counts(self) -> Tensor:
        """Number of training samples per client and class, int64 [N, C], on the data's device."""
        split = self.train
        sizes = torch.from_numpy(split.sizes).to(split.order.device)
        client = torch.repeat_interleave(torch.arange(self.clients, device=sizes.device), sizes)
        cells = torch.bincount(client * self.classes + split.labels[split.order], minlength=self.clients * self.classes)
        return cells.view(self.clients, self.classes)
