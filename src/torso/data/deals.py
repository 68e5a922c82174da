"""An epoch of batches as numbers on the device, dealt at once: what the batches of `Deck.shuffled` are made of.

A recording of several steps reads them from fixed memory, so the host has nothing to do between the steps.
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

_QUARTER = 4  # epochs of more steps than this are rounded up to a multiple of it, so that few lengths occur


@dataclass(frozen=True)
class Form:
    """What an epoch of batches looks like: the same for many visits."""

    clients: int
    steps: int  # room for so many; a client may need fewer
    width: int
    changed: bool  # whether an augmentation draws
    keyed: bool  # whether the network does

    @classmethod
    def of(cls, deck: Deck, width: int, changed: bool, keyed: bool) -> Form:
        steps = -(-deck.index.shape[1] // width)
        steps = steps if steps <= _QUARTER else -(-steps // _QUARTER) * _QUARTER
        return cls(len(deck.clients), steps, width, changed, keyed)

    @property
    def uses(self) -> tuple[str, ...]:
        """What random bits are for."""
        return ("shuffle", *(["augment"] if self.changed else []), *(["drop"] if self.keyed else []))


@dataclass(frozen=True)
class Deal:
    """An epoch of batches in fixed memory."""

    told: Tensor  # int64 [G, 1 + S + U]: size, samples in each step, a key for each use
    index: Tensor  # int64 [G, S · B]
    picks: Tensor  # int64 [S, 2, G, B]: which samples, and the bits that change them
    facts: Tensor  # int64 [S, 2, G]: how many samples are real, and the key of the step

    @classmethod
    def room(cls, form: Form, device: torch.device) -> Deal:
        clients, steps, width = form.clients, form.steps, form.width

        def place(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            told=place(clients, 1 + steps + len(form.uses)),
            index=place(clients, steps * width),
            picks=place(steps, 2, clients, width),
            facts=place(steps, 2, clients),
        )

    def fill(self, deck: Deck, form: Form, how: Shuffle, epoch: int, filled: NDArray[np.int64]) -> None:
        """Say who has which samples, and by which keys they are dealt; `filled` [G, S] as `filled_by` gives it."""
        keys = [deck.key_array(how, use, epoch) for use in form.uses]
        told = np.column_stack([np.asarray(deck.sizes, dtype=np.int64), filled, *keys])
        self.told.copy_(sent_to(self.told.device, told))
        self.index[:, : deck.index.shape[1]].copy_(deck.index)

    def deal(self, form: Form) -> None:
        """Deal an epoch: the same samples, bits and keys as `Deck.shuffled` gives."""
        steps, columns = form.steps, self.index.shape[1]
        size, filled, keys = self.told[:, :1], self.told[:, 1 : 1 + steps], self.told[:, 1 + steps :]
        bits = random_bits(keys, columns)  # [G, U, S · B]
        there = torch.arange(columns, device=size.device) < size
        order = self.index.gather(1, torch.where(there, bits[:, 0], LAST).argsort(dim=1, stable=True))
        self.picks[:, 0].copy_(_by_step(order, form))
        if form.changed:
            self.picks[:, 1].copy_(_by_step(bits[:, 1], form))
        self.facts[:, 0].copy_(filled.T)
        if form.keyed:
            self.facts[:, 1].copy_(bits[:, -1, :steps].T)


def _by_step(numbers: Tensor, form: Form) -> Tensor:
    """[G, S · B] as [S, G, B]."""
    return numbers.reshape(form.clients, form.steps, form.width).transpose(0, 1)


def filled_by(used: Sequence[int], form: Form) -> NDArray[np.int64]:
    """How many samples G clients have in each of S steps [G, S], if they meet so many in the epoch."""
    left = np.asarray(used, dtype=np.int64)[:, None] - form.width * np.arange(form.steps, dtype=np.int64)
    return left.clip(0, form.width)
