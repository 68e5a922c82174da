"""Kinds of input: their descriptions, what they accept, their lenses; moments that add up over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from torso.data.batches import Batch, Deck
from torso.data.inputs import Floats, Input, Moments, Pixels, Tokens, as_input
from torso.errors import RequestError

CPU = torch.device("cpu")
KINDS = [
    (Pixels(3, 32, 32), (3, 32, 32), 3072, "images of 32×32 with 3 channels"),
    (Pixels(1, 8, 9), (1, 8, 9), 72, "images of 8×9 with 1 channel"),
    (Floats((14,)), (14,), 56, "rows of 14 numbers"),
    (Floats((1,)), (1,), 4, "rows of 1 number"),
    (Floats((3, 1000)), (3, 1000), 12000, "arrays of 3×1000 numbers"),
    (Tokens(128, 1000), (128,), 512, "sequences of at most 128 tokens"),
]


@pytest.mark.parametrize(("kind", "shape", "size", "words"), KINDS)
def test_what_a_kind_says_of_itself(kind: Input, shape: tuple[int, ...], size: int, words: str) -> None:
    """Bytes: a pixel has one, a float32 and an int32 four."""
    assert (kind.shape, kind.bytes, kind.words) == (shape, size, words)
    example, bare = kind.example(2), kind.example(2, torch.device("meta"))
    assert example.shape == bare.shape == (2, *shape)
    assert example.dtype == bare.dtype == kind.given
    assert torch.equal(example, kind.example(2))
    stored = torch.zeros(3, *kind.accept("mine", _stored(kind)).shape[1:], dtype=kind.stored)
    assert stored[0].numel() * stored.element_size() == size
    seen = kind.lens(CPU).look(stored, torch.zeros(2, 5, dtype=torch.int64))
    assert (seen.shape, seen.dtype) == ((2, 5, *shape), kind.given)
    assert hash(kind) == hash(replace(kind))  # type: ignore[type-var]


def _stored(kind: Input) -> np.ndarray:
    if isinstance(kind, Pixels):
        return np.zeros((1, kind.height, kind.width, kind.channels), np.uint8)
    return np.zeros((1, *kind.shape), np.int64 if isinstance(kind, Tokens) else np.float64)


def test_three_sizes_stand_for_images() -> None:
    assert as_input((3, 8, 9)) == Pixels(3, 8, 9)
    assert as_input(Floats((2,))) == Floats((2,))


def test_an_example_draws_from_nobodys_random_stream() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    for kind, *_ in KINDS:
        kind.example(2)
    assert torch.equal(torch.rand(3), wanted)


# statistics


def test_moments_by_hand() -> None:
    """Features (1, 10), (3, 10) of one client and (5, 10) of another: means 3 and 10, variances (4 + 0 + 4) / 3 and 0,
    and what does not vary has std 1."""
    clients = [np.array([[1.0, 10.0], [3.0, 10.0]]), np.array([[5.0, 10.0]])]
    found = Moments.over(clients)
    assert (found.count, found.total.tolist(), found.squares.tolist()) == (3, [9.0, 30.0], [35.0, 300.0])
    mean, std = found.mean_and_std()
    assert mean == (3.0, 10.0)
    assert std == pytest.approx(((8 / 3) ** 0.5, 1.0))


def test_clients_sums_are_pooled_statistics() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(3, 2, (n, 4, 7)).astype(np.float32) for n in (1, 5, 30)]
    kind = Floats((4, 7)).fitted(clients)
    pooled = np.concatenate(clients).astype(np.float64)
    np.testing.assert_allclose(kind.mean, pooled.mean(axis=(0, 2)), rtol=1e-12)
    np.testing.assert_allclose(kind.std, pooled.std(axis=(0, 2)), rtol=1e-12)
    given = Floats((4, 7), mean=(0.0,) * 4, std=(2.0,) * 4)
    assert given.fitted(clients) is given


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9, 123456.789])
def test_a_constant_feature_has_std_1(value: float) -> None:
    """A constant feature has std 1, although rounding leaves a small difference of two large sums."""
    clients = [np.full((n, 1), value, np.float32) for n in (3, 1000, 7)]
    assert Moments.over(clients).mean_and_std()[1] == (1.0,)


def test_a_large_feature_that_varies_a_little_keeps_its_std() -> None:
    years = np.array([[2001.0], [2002.0], [2003.0]])
    assert Moments.over([years]).mean_and_std()[1] == pytest.approx(((2 / 3) ** 0.5,))


def test_numbers_are_standardised_by_feature() -> None:
    """(x − mean) / std with mean (1, 2) and std (2, 4): rows (3, 10) and (1, 2) become (1, 2) and (0, 0)."""
    lens = Floats((2,), (1.0, 2.0), (2.0, 4.0)).lens(CPU)
    stored = torch.tensor([[3.0, 10.0], [1.0, 2.0]])
    seen = lens.look(stored, torch.tensor([[0, 1]]))
    assert seen.tolist() == [[[1.0, 2.0], [0.0, 0.0]]]
    assert stored.tolist() == [[3.0, 10.0], [1.0, 2.0]]
    signal = Floats((2, 2), (1.0, 2.0), (2.0, 4.0)).lens(CPU)  # a mean for each channel, whatever the time
    seen = signal.look(torch.tensor([[[3.0, 5.0], [2.0, 6.0]]]), torch.tensor([[0]]))
    assert seen.tolist() == [[[[1.0, 2.0], [0.0, 1.0]]]]


def test_lenses_are_equal_where_their_statistics_are() -> None:
    """Runs that learn in one stack look through one lens."""
    kind = Floats((2,), (1.0, 2.0), (2.0, 4.0))
    assert kind.lens(CPU) == kind.lens(CPU)
    assert kind.lens(CPU) != replace(kind, mean=(1.0, 3.0)).lens(CPU)
    assert kind.lens(CPU) != Tokens(2, 2).lens(CPU)


# arrays of unknown origin


def test_a_mask_becomes_padding() -> None:
    ids, mask = [[5, 6, 7], [8, 9, 9]], [[1, 1, 0], [1, 0, 0]]
    found = Tokens.array("mine", ids, mask, pad=10)
    assert found.tolist() == [[5, 6, 10], [8, 10, 10]]
    assert found.dtype == np.int32
    x = Tokens(3, 11, pad=10).lens(CPU).look(torch.from_numpy(found), torch.tensor([[1, 0]]))
    assert (x != 10).tolist() == [[[True, False, False], [True, True, False]]]
    assert x.dtype == torch.int64


def test_short_sequences_are_padded() -> None:
    assert Tokens(4, 9, pad=8).accept("mine", [[1, 2]]).tolist() == [[1, 2, 8, 8]]


@pytest.mark.parametrize(
    ("kind", "found", "message"),
    [
        (Floats((2,)), np.zeros((3, 3)), r"mine: samples are \[3, 3\]. Expected: \[n, 2\], as those"),
        (Floats((2,)), [["a", "b"]], r"mine: samples are <U1 \[1, 2\]. Expected: numbers"),
        (Floats((2,)), [[0.0, np.nan], [np.inf, 0]], "mine: 2 samples hold NaN or infinite .* the first is sample 0"),
        (Floats((1,)), [[1e300]], "mine: 1 sample holds NaN or infinite"),
        (Floats((2,)), np.zeros((0, 2)), "mine: there are no samples"),
        (Tokens(3, 9), [[1.0, 2.0]], r"mine: sequences are float64 \[1, 2\]. Expected: integers \(token ids\)"),
        (Tokens(3, 9), [[1, 2, 3, 4]], "Expected: at most 3 tokens"),
        (Tokens(3, 9), [[1, 9, 3]], "mine: id 9 is not in the vocabulary. Expected: 0 to 8"),
        (Tokens(3, 9), [[1, -1, 3]], "mine: ids are -1 to 3. Expected: 0 or more"),
        (Pixels(1, 4, 4), np.zeros((2, 4, 5), np.uint8), r"mine: images are \[2, 4, 5, 1\]. Expected: \[n, 4, 4, 1\]"),
    ],
)
def test_what_does_not_fit_is_refused(kind: Input, found: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        kind.accept("mine", found)


def test_masks_that_will_not_do() -> None:
    with pytest.raises(RequestError, match=r"mine: the mask is int64 \[1, 2\]. Expected: 1 for a token"):
        Tokens.array("mine", [[1, 2, 3]], [[1, 1]], pad=0)
    with pytest.raises(
        RequestError, match="mask takes place 1 of sequence 0 for a token, and its id is that of padding, 0"
    ):
        Tokens.array("mine", [[1, 0, 3]], [[1, 1, 0]], pad=0)
    with pytest.raises(RequestError, match=r"pad = 9 with a vocabulary of 9 ids. Expected: 0 to 8"):
        Tokens(3, 9, pad=9)


def test_rows_of_a_table_by_the_names_of_its_columns() -> None:
    """As the source encodes them: a missing number is the mean, a missing category the one with no name, if any, and an
    unknown one is zero everywhere. A column whose name has a = in it is found by its whole name."""
    kind = Floats((5,), (40.0,) * 5, (1.0,) * 5, ("age", "city=", "city=Oslo", "city=Rome", "a=b"))
    rows = [
        {"age": "20", "city": "Rome", "a=b": 1},
        {"age": None, "city": "?", "a=b": 2},
        {"age": 3, "city": 9, "a=b": 3},
    ]
    assert kind.accept("mine", rows).tolist() == [[20, 0, 0, 1, 1], [40, 1, 0, 0, 2], [3, 0, 0, 0, 3]]
    with pytest.raises(RequestError, match=r"mine 1 has no 'city'. Expected: the columns of the table, for age, city="):
        kind.accept("mine", [rows[0], {"age": 1, "a=b": 1}])
    with pytest.raises(RequestError, match="mine 0: age = 'old' is no number"):
        kind.accept("mine", [{**rows[0], "age": "old"}])


# batches of any rank


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 3)])
def test_batches_of_any_rank_are_filled_from_others(shape: tuple[int, ...]) -> None:
    """Client 1 has no samples left and gets those of the other batch; client 0 keeps its own."""
    mine, other = torch.zeros(2, 1, *shape), torch.ones(2, 2, *shape)
    short = Batch(mine, torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[1.0], [0.0]]), torch.tensor([True, False]))
    found = short.filled_from(Batch(other, torch.ones(2, 2, dtype=torch.int64)))
    assert found.inputs.shape == (2, 2, *shape)
    assert (found.inputs[0, 0] == 0).all()
    assert (found.inputs[1] == 1).all()
    assert found.real is not None
    assert found.real.tolist() == [[1, 0], [1, 1]]


def test_a_deck_deals_rows_and_sequences() -> None:
    """The rows of two clients, standardised, in their order; the shorter one padded."""
    rows = torch.tensor([[0.0], [2.0], [4.0]])
    deck = Deck.of(rows, torch.arange(3), [torch.tensor([0, 1]), torch.tensor([2])], [0, 1])
    (batch,) = deck.in_order(2, Floats((1,), (2.0,), (2.0,)).lens(CPU))
    assert batch.inputs[0].tolist() == [[-1.0], [0.0]]
    assert batch.inputs[1, 0].tolist() == [1.0]
    assert batch.real is not None
    assert batch.real.tolist() == [[1, 1], [1, 0]]
