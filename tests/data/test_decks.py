"""Decks made from other decks: samples held out for validation, common samples added; a batch filled from another."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torso.data.augment import PixelLens
from torso.data.batches import Batch, Deck, Shuffle

PLAIN = PixelLens.of((0.0,), (1 / 255,), torch.device("cpu"))  # input = the stored byte


def deck(sizes: list[int], clients: list[int] | None = None, spare: int = 0) -> Deck:
    """Client g owns the next `sizes[g]` images; the last images belong to no client. Image i has pixel i, label i."""
    total = sum(sizes) + spare
    rows = [torch.arange(sum(sizes[:g]), sum(sizes[: g + 1])) for g in range(len(sizes))]
    images = torch.arange(total, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Deck.of(images, torch.arange(total), rows, clients or list(range(len(sizes))))


def rows(cards: Deck) -> list[list[int]]:
    return [index[:size].tolist() for index, size in zip(cards.index, cards.sizes, strict=True)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.sampled_from([0.1, 0.2, 0.29, 0.5, 0.9, 1.0]))
def test_parted_is_disjoint_whole_and_of_the_right_size(sizes: list[int], share: float) -> None:
    whole = deck(sizes)
    kept, held = whole.split_off(share, seed=3)
    for mine, learned, out, size in zip(rows(whole), rows(kept), rows(held), sizes, strict=True):
        assert sorted(learned + out) == mine
        assert len(out) == math.floor(round(share * size, 6))  # 0.29 · 100 must be 29 despite rounding


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=4), st.integers(0, 5))
def test_parted_does_not_depend_on_company_and_is_the_same_every_time(sizes: list[int], seed: int) -> None:
    together = rows(deck(sizes).split_off(0.3, seed)[1])
    assert together == rows(deck(sizes).split_off(0.3, seed)[1])
    images = deck(sizes).samples
    for g, size in enumerate(sizes):
        mine = torch.arange(sum(sizes[:g]), sum(sizes[:g]) + size)
        alone = Deck.of(images, torch.arange(sum(sizes)), [mine], [g])
        assert rows(alone.split_off(0.3, seed)[1]) == [together[g]]


def test_parted_differs_between_clients_and_seeds() -> None:
    outs = [rows(deck([40], [client]).split_off(0.5, seed)[1])[0] for client in (0, 1) for seed in (0, 1)]
    assert len({tuple(sorted(out)) for out in outs}) == 4


def test_parted_of_a_single_sample_holds_nothing_out() -> None:
    kept, held = deck([1, 1]).split_off(0.2, 0)
    assert (kept.sizes, held.sizes) == ((1, 1), (0, 0))
    assert list(held.in_order(5, PLAIN)) == []


def test_joined_puts_the_same_rows_behind_everybodys_own() -> None:
    cards = deck([2, 4, 1], spare=3).with_rows(torch.tensor([7, 9]))
    assert rows(cards) == [[0, 1, 7, 9], [2, 3, 4, 5, 7, 9], [6, 7, 9]]
    assert cards.sizes == (4, 6, 3)
    assert cards.clients == (0, 1, 2)
    seen = [0] * 10
    for batch in cards.shuffled(2, PLAIN, Shuffle(0, "train", 1), 0, None):
        real = torch.ones_like(batch.labels) if batch.real is None else batch.real
        for label in batch.labels[real.bool()].tolist():
            seen[label] += 1
    assert seen == [1, 1, 1, 1, 1, 1, 1, 3, 0, 3]


def batches(sizes: list[int], batch_size: int) -> list[Batch]:
    return list(deck(sizes).in_order(batch_size, PLAIN))


def samples(batch: Batch) -> list[list[int]]:
    real = torch.ones_like(batch.labels) if batch.real is None else batch.real
    assert torch.equal(batch.inputs.flatten(1).long()[real.bool()], batch.labels[real.bool()])
    return [labels[keep.bool()].tolist() for labels, keep in zip(batch.labels, real, strict=True)]


def test_a_batch_is_filled_from_another_for_clients_without_samples() -> None:
    """Sizes 2, 5, 3 in batches of 3: in the second batch only client 1 has samples (two)."""
    first, second = batches([2, 5, 3], 3)
    assert samples(second) == [[], [5, 6], []]
    filled = second.filled_from(first)
    assert samples(filled) == [[0, 1], [5, 6], [7, 8, 9]]
    assert filled.active is None  # all clients have samples


def test_filling_leaves_a_batch_that_everybody_has_alone() -> None:
    first, second = batches([4, 5], 3)
    assert second.filled_from(first) is second


def test_filling_keeps_clients_still_that_have_no_samples_in_either() -> None:
    """A client with a single sample has no batch, because a last batch of one is skipped."""
    cards = deck([1, 5])
    first, second = cards.shuffled(3, PLAIN, Shuffle(0, "train", 1), 0, None, skip_single=True)
    filled = second.filled_from(first)
    assert filled.active is not None
    assert filled.active.tolist() == [False, True]
    assert samples(filled)[0] == []


def test_clients_with_samples_that_stand_first_are_said_to_lead() -> None:
    """Sizes 7, 4, 4 in batches of 3: three samples of each client, then 3, 1 and 1, then one of the first client."""
    leads = [batch.lead for batch in batches([7, 4, 4], 3)]
    assert leads == [None, None, 1]
    assert samples(batches([7, 4, 4], 3)[2].first(2)) == [[6], []]
    assert [batch.lead for batch in batches([4, 7, 4], 3)] == [None, None, None]  # the active client stands second


def test_longest_first_is_an_order_of_steps_and_none_where_it_is_kept() -> None:
    cards = deck([2, 7, 4, 9])
    order = cards.longest_first(3, skip_single=False)
    assert order == [1, 3, 2, 0]  # steps 1, 3, 2, 3: the sort is stable
    assert cards.longest_first(10, skip_single=False) is None  # one step each
    assert deck([9, 7, 4, 2]).longest_first(3, skip_single=False) is None
    assert deck([4, 5]).longest_first(3, skip_single=True) == [1, 0]  # 4 is one step once its last sample is skipped
    placed = cards.of_places(order, torch.tensor(order))
    assert rows(placed) == [rows(cards)[place] for place in order]
    assert placed.clients == (1, 3, 2, 0)
