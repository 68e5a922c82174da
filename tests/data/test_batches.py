"""Batches: every sample once per epoch, the same for a client alone or in a stack; crops against a naive loop."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torso.data.augment import Augmentation, PixelLens, augmentations
from torso.data.batches import Deck, Shuffle

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)
PLAIN = PixelLens.of((0.0,), (1 / 255,), torch.device("cpu"))  # input = the stored byte


def deck(sizes: list[int], clients: list[int] | None = None) -> Deck:
    """Client g owns the next `sizes[g]` images; image i is one pixel with value i, its label is i."""
    total = sum(sizes)
    rows = list(torch.arange(total).split(sizes))
    images = torch.arange(total, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Deck.of(images, torch.arange(total), rows, clients or list(range(len(sizes))))


def met(cards: Deck, batch_size: int, epoch: int = 0, skip: bool = False) -> list[list[list[int]]]:
    """[client][batch] → real samples."""
    seen: list[list[list[int]]] = [[] for _ in cards.sizes]
    for batch in cards.shuffled(batch_size, PLAIN, Shuffle(0, "train", 1), epoch, None, skip):
        assert torch.equal(batch.inputs.flatten(1).long(), batch.labels)
        for g in range(len(seen)):
            real = torch.ones(batch.labels.shape[1]) if batch.real is None else batch.real[g]
            assert (batch.active is None or bool(batch.active[g])) == (real.sum() > 0)
            if real.sum():
                seen[g].append(batch.labels[g][real.bool()].tolist())
    return seen


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 12))
def test_every_sample_once_an_epoch_in_full_batches_but_the_last(sizes: list[int], batch_size: int) -> None:
    cards = deck(sizes)
    for g, batches in enumerate(met(cards, batch_size)):
        assert sorted(i for batch in batches for i in batch) == cards.index[g, : sizes[g]].tolist()
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert len(batches) == cards.steps(batch_size)[g]


@settings(deadline=None, max_examples=30)
@given(SIZES, st.integers(1, 12))
def test_company_changes_nothing(sizes: list[int], batch_size: int) -> None:
    together = met(deck(sizes), batch_size)
    for g, size in enumerate(sizes):
        first = sum(sizes[:g])
        alone = Deck.of(deck(sizes).samples, torch.arange(sum(sizes)), [torch.arange(first, first + size)], [g])
        assert met(alone, batch_size)[0] == together[g]


def test_order_depends_on_client_round_and_epoch() -> None:
    orders = [met(deck([20], [client]), 20, epoch)[0][0] for client in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_a_last_batch_of_one_is_skipped_on_request() -> None:
    cards = deck([11, 10, 1])
    assert [[len(b) for b in batches] for batches in met(cards, 5, skip=True)] == [[5, 5], [5, 5], []]
    assert cards.steps(5, skip_single=True) == (2, 2, 0)


def naive(image: torch.Tensor, pad: int, down: int, right: int, mirror: bool) -> torch.Tensor:
    height, width, _ = image.shape
    padded = torch.zeros(height + 2 * pad, width + 2 * pad, image.shape[2], dtype=image.dtype)
    padded[pad : pad + height, pad : pad + width] = image
    crop = padded[pad + down : pad + down + height, pad + right : pad + right + width]
    return crop.flip(1) if mirror else crop


def test_crop_and_flip_is_the_naive_crop_and_flip() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (5, 6, 7, 3), dtype=torch.uint8, generator=generator)
    index = torch.randint(0, 5, (2, 40), generator=generator)
    bits = torch.randint(0, 1 << 62, (2, 40), generator=generator)
    out = PixelLens.of((0.0,) * 3, (1 / 255,) * 3, torch.device("cpu")).look(images, index, Augmentation(2, True), bits)
    offsets = set()
    for g in range(2):
        for b in range(40):
            bit = int(bits[g, b])
            down, right, mirror = (bit & 0xFFFFF) % 5 - 2, (bit >> 20 & 0xFFFFF) % 5 - 2, bool(bit >> 40 & 1)
            offsets.add((down, right, mirror))
            expected = naive(images[index[g, b]], 2, down, right, mirror)
            assert torch.equal(out[g, b].movedim(0, -1).to(torch.uint8), expected)
    assert len(offsets) > 30


def test_padding_is_black_before_normalisation_and_layout_is_channels_last() -> None:
    images = torch.full((1, 8, 8, 3), 255, dtype=torch.uint8)
    lens = PixelLens.of((0.5,) * 3, (0.25,) * 3, torch.device("cpu"))
    shifted = lens.look(
        images, torch.zeros(1, 1, dtype=torch.int64), augmentations["crop-flip"], torch.zeros(1, 1).long()
    )
    assert shifted.unique().tolist() == [-2.0, 2.0]  # offset −4, −4: a black border above and left
    assert shifted[0].is_contiguous(memory_format=torch.channels_last)
