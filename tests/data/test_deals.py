"""The batches that `Deal` computes at once equal those that a deck yields one by one."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from torso.data.augment import Augmentation, Lens
from torso.data.batches import Deck, Shuffle
from torso.data.deals import Deal, DealShape, samples_per_step

CPU = torch.device("cpu")


def deck_of(*sizes: int) -> Deck:
    """Sample i is the number i."""
    samples = torch.arange(sum(sizes))
    rows = list(samples.split(sizes))
    return Deck.of(samples, samples % 3, rows, range(7, 7 + len(sizes)))


@pytest.mark.parametrize("sizes", [(10, 10), (11, 4, 0), (3, 2), (26, 25, 1), (1, 1)])
@pytest.mark.parametrize("skip", [True, False])
def test_the_same_samples_bits_and_keys(sizes: tuple[int, ...], skip: bool) -> None:
    deck, how, change, seen = deck_of(*sizes), Shuffle(3, "train", 2), Augmentation(2, True), list[Tensor]()

    class Watching(Lens):
        def look(self, *given: object) -> Tensor:
            seen.append(cast(Tensor, given[3]))
            return super().look(*given[:2])  # type: ignore[arg-type]

    form = DealShape.of(deck, min(5, max(sizes)), True, True)
    deal = Deal.room(form, CPU)
    deal.index.fill_(sum(sizes) - 1)  # numbers left from an earlier visit
    filled = samples_per_step(deck.used(5, skip), form)
    for epoch in range(2):
        seen.clear()
        deal.fill(deck, form, how, epoch, filled)
        deal.deal(form)
        step = -1
        for step, batch in enumerate(deck.shuffled(5, Watching(), how, epoch, change, skip, "device")):
            width = batch.labels.shape[1]
            real = torch.ones(batch.labels.shape, dtype=torch.bool) if batch.real is None else batch.real.bool()
            assert torch.equal(deal.step_facts[step, 0], real.sum(dim=1))
            assert torch.equal(deal.sample_picks[step, 0, :, :width][real], batch.inputs[real])
            assert torch.equal(deal.sample_picks[step, 1, :, :width][real], seen[step][real])
            assert torch.equal(deal.step_facts[step, 1], batch.keys)
        assert not filled[:, step + 1 :].any()


def test_lengths_are_few() -> None:
    forms = {DealShape.of(deck_of(size), 5, False, False).steps for size in range(1, 101)}
    assert forms == {1, 2, 3, 4, 8, 12, 16, 20}


def test_how_many_samples_each_step_has() -> None:
    form = DealShape(3, 3, 5, False, False)
    assert samples_per_step((12, 5, 0), form).tolist() == [[5, 5, 2], [5, 0, 0], [0, 0, 0]]
    assert samples_per_step((12, 5, 0), form).dtype == np.int64
