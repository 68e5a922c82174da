"""`Deal`: the indices, random bits and keys of all batches of an epoch, made on the device at once.

They are the same numbers of which `Deck.shuffled` makes its batches. A recording of several steps (a CUDA graph) reads
them from fixed memory, so the host has nothing to do between the steps.
G clients, S steps, B samples in a batch; padding is a valid sample that is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.batches import LAST, Deck, Shuffle
from torso.data.sending import sent_to
from torso.randomness import random_bits

_MULTIPLE = 4  # epochs of more steps than this get room for a multiple of it, so that few different lengths occur


@dataclass(frozen=True)
class DealShape:
    """The sizes of a `Deal`. Many visits have the same, so they can share its memory and the recording."""

    clients: int
    steps: int  # the most steps; a client may need fewer
    width: int  # samples in a batch
    changed: bool  # whether an augmentation draws random numbers
    keyed: bool  # whether the network draws random numbers

    @classmethod
    def of(cls, deck: Deck, width: int, changed: bool, keyed: bool) -> DealShape:
        steps = -(-deck.index.shape[1] // width)
        if steps > _MULTIPLE:
            steps = -(-steps // _MULTIPLE) * _MULTIPLE
        return cls(len(deck.clients), steps, width, changed, keyed)

    @property
    def uses(self) -> tuple[str, ...]:
        """The U purposes for which random bits are drawn."""
        return ("shuffle", *(["augment"] if self.changed else []), *(["drop"] if self.keyed else []))


@dataclass(frozen=True)
class Deal:
    """The batches of an epoch in fixed memory. `fill` copies the input from the host, `deal` computes the batches."""

    per_client: Tensor  # input, int64 [G, 1 + S + U]: number of samples, samples in each step, a key for each use
    index: Tensor  # input, int64 [G, S · B]: sample indices of each client
    sample_picks: Tensor  # result, int64 [S, 2, G, B]: sample indices, and the bits of the augmentation
    step_facts: Tensor  # result, int64 [S, 2, G]: number of real samples, and the key of the step

    @classmethod
    def room(cls, form: DealShape, device: torch.device) -> Deal:
        """A Deal of these sizes, filled with zeros."""
        clients, steps, width = form.clients, form.steps, form.width

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            per_client=zeros(clients, 1 + steps + len(form.uses)),
            index=zeros(clients, steps * width),
            sample_picks=zeros(steps, 2, clients, width),
            step_facts=zeros(steps, 2, clients),
        )

    def fill(self, deck: Deck, form: DealShape, how: Shuffle, epoch: int, filled: NDArray[np.int64]) -> None:
        """Copy the clients' sample indices, sizes and keys of an epoch to the device; `filled` [G, S]: see
        `samples_per_step`."""
        keys = [deck.key_array(how, use, epoch) for use in form.uses]
        per_client = np.column_stack([np.asarray(deck.sizes, dtype=np.int64), filled, *keys])
        self.per_client.copy_(sent_to(self.per_client.device, per_client))
        self.index[:, : deck.index.shape[1]].copy_(deck.index)

    def deal(self, form: DealShape) -> None:
        """Compute the batches of the epoch: the same samples, bits and keys as those of `Deck.shuffled`."""
        steps, columns = form.steps, self.index.shape[1]
        size, filled, keys = self.per_client[:, :1], self.per_client[:, 1 : 1 + steps], self.per_client[:, 1 + steps :]
        bits = random_bits(keys, columns)  # [G, U, S · B]
        is_real = torch.arange(columns, device=size.device) < size
        order = self.index.gather(1, torch.where(is_real, bits[:, 0], LAST).argsort(dim=1, stable=True))
        self.sample_picks[:, 0].copy_(_by_step(order, form))
        if form.changed:
            self.sample_picks[:, 1].copy_(_by_step(bits[:, 1], form))
        self.step_facts[:, 0].copy_(filled.T)
        if form.keyed:
            self.step_facts[:, 1].copy_(bits[:, -1, :steps].T)


def _by_step(numbers: Tensor, form: DealShape) -> Tensor:
    """[G, S · B] as [S, G, B]."""
    return numbers.reshape(form.clients, form.steps, form.width).transpose(0, 1)


def samples_per_step(used: Sequence[int], form: DealShape) -> NDArray[np.int64]:
    """Number of real samples of each client in each step [G, S]; `used`: samples of each client in the epoch."""
    left = np.asarray(used, dtype=np.int64)[:, None] - form.width * np.arange(form.steps, dtype=np.int64)
    return left.clip(0, form.width)
