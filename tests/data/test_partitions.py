"""Partitions against spec 10.1, 10.3 and 10.4, and the messages for what cannot be dealt."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torso.data import partitions
from torso.data.dirichlet import even_out, fill, split
from torso.data.partitions import deal, long_tail, pieces
from torso.data.rows import Rows
from torso.errors import RequestError

from .samples import even, options, toy

EVERYWHERE = sorted(set(partitions) - {"writers", "by-client"})


def distinct(rows: Rows, labels: np.ndarray) -> float:
    """Mean number of distinct classes of a client."""
    return float(np.mean([len(np.unique(labels[rows.of(k)])) for k in range(len(rows))]))


def table(rows: Rows, labels: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[rows.of(k)], minlength=classes) for k in range(len(rows))])


def owned_once(rows: Rows, count: int) -> bool:
    return sorted(rows.order.tolist()) == list(range(count))


# --- shards (10.1) ---------------------------------------------------------------------------------------------------


def test_left_over_samples_go_to_the_first_pieces() -> None:
    """11 samples, 4 pieces: two each, and the last three (8, 9, 10) one each to pieces 0, 1, 2 (spec 10.1, step 2)."""
    assert pieces(11, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2]
    assert pieces(2, 5).tolist() == [0, 1]


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 12),
    classes=st.integers(1, 6),
    copies=st.integers(1, 3),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_shards_use_every_sample_once_with_matched_classes(
    clients: int, classes: int, copies: int, seed: int, data: st.DataObject
) -> None:
    s = copies * classes // math.gcd(clients, classes)
    q = clients * s // classes
    per_class = data.draw(st.lists(st.integers(q, 3 * q), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), per_class)
    dataset = toy(np.random.default_rng(seed).permutation(labels), even(classes, 2 * q + 1), classes)
    dealt = deal(dataset, options(clients=clients, shards=s), seed)
    assert owned_once(dealt.train, len(labels))
    assert owned_once(dealt.test, len(dataset.test))
    for k in range(clients):
        train, test = dataset.train.labels[dealt.train.of(k)], dataset.test.labels[dealt.test.of(k)]
        assert set(train) == set(test)
        for c, total in Counter(
            test.tolist()
        ).items():  # 2q + 1 test samples in q pieces: two each, one piece has three
            multiplicity = total // 2
            low = per_class[c] // q * multiplicity
            assert low <= (train == c).sum() <= low + multiplicity


@pytest.mark.parametrize(
    ("classes", "s", "mean"), [(10, 10, 6.6), (10, 5, 4.1), (10, 2, 1.9), (100, 10, 9.6), (100, 50, 39.7)]
)
def test_mean_distinct_classes_of_the_spec(classes: int, s: int, mean: float) -> None:
    """Spec 10.1 measured one draw with N = 100. Exactly: C · P(one of s slots out of N·s is among a class's q)."""
    q = 100 * s // classes
    exact = classes * (1 - math.comb(100 * s - q, s) / math.comb(100 * s, s))
    assert exact == pytest.approx(mean, abs=0.15)
    dataset = toy(even(classes, 1000 if classes == 10 else 500))
    found = [
        distinct(deal(dataset, options(clients=100, shards=s), seed).train, dataset.train.labels) for seed in range(6)
    ]
    assert np.mean(found) == pytest.approx(exact, abs=0.02 * exact)


def test_three_shards_of_cifar10_have_the_sizes_of_the_spec() -> None:
    """Spec 10.1: s = 3 on CIFAR-10 with N = 100 gives clients of 498 to 501 samples."""
    sizes = deal(toy(even(10, 5000)), options(clients=100, shards=3), 0).train.sizes
    assert sizes.sum() == 50000
    assert sizes.min() >= 498
    assert sizes.max() <= 501


def test_more_test_shards_than_test_samples_leave_empty_test_pieces() -> None:
    """Spec 10.1: N = 500, s = 100, 100 test images per class: 10 to 31 test samples a client, mean 20."""
    dealt = deal(toy(even(100, 500), even(100, 100)), options(clients=500, shards=100), 0)
    assert dealt.test.sizes.mean() == 20
    assert 5 <= dealt.test.sizes.min() < 20 < dealt.test.sizes.max() <= 40


@pytest.mark.parametrize(
    ("clients", "classes", "s", "fit"), [(10, 4, 3, "2 or 4"), (10, 20, 3, "2 or 4"), (2, 10, 1, "5")]
)
def test_shards_that_do_not_divide_are_refused_with_what_would(clients: int, classes: int, s: int, fit: str) -> None:
    dataset = toy(even(classes, 100))
    with pytest.raises(
        RequestError, match=rf"data.shards = {s}: {clients} × {s} .* {classes} classes. Accepted: {fit},"
    ):
        deal(dataset, options(clients=clients, shards=s), 0)


def test_balance_deals_what_does_not_divide() -> None:
    """N = 10, C = 4, s = 3: 30 slots, so two classes have 8 pieces and two have 7; everything is dealt."""
    dataset = toy(even(4, 112), even(4, 56))
    dealt = deal(dataset, options(clients=10, shards=3, balance=True), 0)
    assert owned_once(dealt.train, 448)
    train, test = table(dealt.train, dataset.train.labels, 4), table(dealt.test, dataset.test.labels, 4)
    assert (train % np.array([14, 14, 16, 16]) == 0).all()
    assert ((train > 0) == (test > 0)).all()
    with pytest.raises(RequestError, match=r"2 × 1 shards are fewer than 4 classes. Accepted: 2 or more"):
        deal(dataset, options(clients=2, shards=1, balance=True), 0)


def test_an_empty_training_client_is_named() -> None:
    with pytest.raises(RequestError, match=r"leaves client \d+ without training samples"):
        deal(toy([0] * 3 + [c for c in range(1, 10) for _ in range(20)]), options(clients=50, shards=1), 0)


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(RequestError, match="100 × 2 shards are more than 100 training samples"):
        deal(toy(even(10, 10)), options(clients=100, shards=2), 0)


def test_sorted_shards_equal_shards_where_boundaries_coincide() -> None:
    """4 classes of 50 in 5 × 4 = 20 pieces of 10, none of which crosses a class."""
    dataset = toy(even(4, 50), even(4, 20))
    dealt = deal(dataset, options(clients=5, shards=4, partition="shards-sorted"), 0)
    train, test = table(dealt.train, dataset.train.labels, 4), table(dealt.test, dataset.test.labels, 4)
    assert owned_once(dealt.train, 200)
    assert (train % 10 == 0).all()
    assert (train == 2.5 * test).all()
    with pytest.raises(
        RequestError, match=r"50 × 5 shards are more than 200 training samples. Accepted: data.shards up to 4, or "
    ):
        deal(dataset, options(clients=50, shards=5, partition="shards-sorted"), 0)


# --- Dirichlet (10.3) ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 15), st.floats(0.05, 10), st.booleans(), st.integers(0, 99))
def test_dirichlet_class_deals_all_in_the_same_proportions(n: int, alpha: float, balance: bool, seed: int) -> None:
    dataset = toy(even(5, 200), even(5, 40))
    dealt = deal(dataset, options(partition="dirichlet-class", clients=n, alpha=alpha, balance=balance), seed)
    assert owned_once(dealt.train, 1000)
    assert owned_once(dealt.test, 200)
    train, test = table(dealt.train, dataset.train.labels, 5), table(dealt.test, dataset.test.labels, 5)
    assert (np.abs(train - 5 * test) <= 5).all()  # both are floors of the same shares, 200 and 40 times


def test_split_floors_cumulative_sums() -> None:
    """0.26, 0.52, 1 of 10: cuts 2, 5, 10. A client without share gets nothing, even the last one."""
    assert split(np.array([[0.26, 0.26, 0.48]]), np.array([10])).tolist() == [[2, 3, 5]]
    assert split(np.array([[1 / 3, 1 / 3, 1 / 3, 0.0]]), np.array([9])).tolist() == [[3, 3, 3, 0]]
    assert split(np.zeros((1, 2)), np.array([9])).tolist() == [[0, 0]]


def test_balancing_gives_nothing_more_to_a_sated_client() -> None:
    """Two classes of 10, two clients: the first takes 10 = |D|/N of class 0, so class 1 is all the second's."""
    shares = even_out(np.array([[1.0, 0.0], [0.9, 0.1]]), np.array([10, 10]), 10)
    assert split(shares, np.array([10, 10])).tolist() == [[10, 0], [0, 10]]
    only_sated = even_out(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([10, 10]), 10)
    assert split(only_sated, np.array([10, 10])).tolist() == [[10, 0], [0, 10]]


def test_min_size_is_met_or_explained() -> None:
    dataset = toy(even(10, 100))
    sizes = deal(dataset, options(partition="dirichlet-class", clients=20, min_size=10), 0).train.sizes
    assert sizes.min() >= 10
    with pytest.raises(RequestError, match=r"data.min_size = 51: 20 clients × 51 .* 1000 .*Accepted: 1 to 50"):
        deal(dataset, options(partition="dirichlet-class", clients=20, min_size=51), 0)
    with pytest.raises(RequestError, match=r"data.alpha = 0.01, data.clients = 50: in \d+ draws .*data.balance = true"):
        deal(dataset, options(partition="dirichlet-class", clients=50, alpha=0.01), 0)


def test_a_floor_comes_first_and_the_draw_deals_the_rest() -> None:
    """Two classes of 10, two clients, floor 2: six of each class are left. α is so small that a draw gives a class to
    one client: it has 2 + 6 of it, the other one 2. |D|/N is 10, which 6 drawn samples do not reach."""
    dataset = toy(even(2, 10), even(2, 5))
    dealt = deal(dataset, options(partition="dirichlet-floor", clients=2, alpha=0.002, floor=2, balance=True), 3)
    train, test = table(dealt.train, dataset.train.labels, 2), table(dealt.test, dataset.test.labels, 2)
    assert sorted(train.ravel().tolist()) == [2, 2, 8, 8]
    assert owned_once(dealt.train, 20)
    assert sorted(test.ravel().tolist()) == [1, 1, 4, 4]  # the proportions of all training samples, floor included


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 15), st.floats(0.05, 10), st.integers(1, 4), st.integers(0, 99))
@example(n=14, alpha=0.0625, floor=1, seed=0)  # refused
def test_the_authors_split_has_floor_balance_and_minimum(n: int, alpha: float, floor: int, seed: int) -> None:
    dataset = toy(even(5, 200), even(5, 40))
    how = options(partition="dirichlet-floor", clients=n, alpha=alpha, floor=floor, balance=True, min_size=10)
    try:
        dealt = deal(dataset, how, seed)
    except RequestError as refused:  # where a class goes to two or three of many clients, no draw may do
        if alpha * n < 3 and "in 1000 draws some client always had fewer than data.min_size" in str(refused):
            return
        raise
    assert owned_once(dealt.train, 1000)
    train = table(dealt.train, dataset.train.labels, 5)
    assert train.min() >= floor
    assert dealt.train.sizes.min() >= 10 + 5 * floor  # the minimum is of the draw, as in the author's code
    # a client with |D|/N drawn samples gets no further class; each class deals all samples beyond the floor
    assert dealt.train.sizes.max() < 1000 / n + (200 - n * floor) + 5 * floor


def test_a_floor_that_cannot_be_is_refused() -> None:
    with pytest.raises(RequestError, match=r"data.floor = 6: 20 clients × 6 .* 100 of class 0. Accepted: 1 to 5"):
        deal(toy(even(10, 100)), options(partition="dirichlet-floor", clients=20, floor=6), 0)
    with pytest.raises(RequestError, match=r"than the 4 of class 0. Expected: fewer data.clients"):
        deal(toy(even(10, 4)), options(partition="dirichlet-floor", clients=5), 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.floats(0.01, 100), st.integers(0, 99))
def test_dirichlet_client_gives_equal_sizes_without_replacement(n: int, alpha: float, seed: int) -> None:
    dataset = toy(even(5, 41), even(5, 20))
    dealt = deal(dataset, options(partition="dirichlet-client", clients=n, alpha=alpha), seed)
    assert (dealt.train.sizes == 205 // n).all()
    assert len(set(dealt.train.order.tolist())) == len(dealt.train.order)
    train, test = table(dealt.train, dataset.train.labels, 5), table(dealt.test, dataset.test.labels, 5)
    share = 20 * train / np.maximum(train.sum(0), 1)
    assert (np.abs(test - share) <= 1).all()


@pytest.mark.parametrize("floor", [0, 2])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_shares_of_a_class_have_the_spread_of_the_dirichlet(alpha: float, floor: int) -> None:
    """Of q ~ Dir(α·1_N), E Σ_k q_k² = (α + 1)/(Nα + 1). Mean over 160 classes. With 2α it is 20 % lower or more."""
    clients, dataset = 10, toy(even(160, 200))
    name = "dirichlet-floor" if floor else "dirichlet-class"
    given = options(partition=name, clients=clients, alpha=alpha, floor=max(floor, 1))
    found = table(deal(dataset, given, 1).train, dataset.train.labels, 160) - floor
    shares = found / (200 - clients * floor)
    assert (shares**2).sum(0).mean() == pytest.approx((alpha + 1) / (clients * alpha + 1), rel=0.1)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_mixes_of_clients_have_the_spread_of_the_dirichlet(alpha: float) -> None:
    """Of n draws from p ~ Dir(α·1_C), E Σ_c (n_c/n)² = (1 − 1/n)·(α + 1)/(Cα + 1) + 1/n; of the first 100 of 300
    clients, before classes run out. With 2α it is 20 % lower or more."""
    size, dataset = 50, toy(even(10, 1500))
    dealt = deal(dataset, options(partition="dirichlet-client", clients=300, alpha=alpha), 0)
    found = table(dealt.train, dataset.train.labels, 10)[:100] / size
    expected = (1 - 1 / size) * (alpha + 1) / (10 * alpha + 1) + 1 / size
    assert (found**2).sum(1).mean() == pytest.approx(expected, rel=0.1)


def test_an_exhausted_mix_is_filled_from_what_is_left() -> None:
    """Only class 0 is wanted and it has 3: the other 4 come from classes 1 and 2 (spec 10.3, all-zero row)."""
    taken = fill(np.array([1.0, 0.0, 0.0]), np.array([3, 2, 5]), 7, np.random.default_rng(0))
    assert taken[0] == 3
    assert taken.sum() == 7
    assert (taken <= [3, 2, 5]).all()


# --- IID, writers, long tail (10.4) ----------------------------------------------------------------------------------


def test_iid_is_equal_and_random() -> None:
    dealt = deal(toy(even(10, 101)), options(partition="iid", clients=20), 0)
    assert (dealt.train.sizes == 50).all()
    assert len(set(dealt.train.order.tolist())) == 1000


def test_iid_balanced_is_exact() -> None:
    dataset = toy(even(4, 43), even(4, 3))
    dealt = deal(dataset, options(partition="iid-balanced", clients=10), 0)
    assert (table(dealt.train, dataset.train.labels, 4) == 4).all()
    assert owned_once(dealt.test, 12)  # three test samples per class for ten clients: at most one each
    assert table(dealt.test, dataset.test.labels, 4).max() == 1
    with pytest.raises(
        RequestError, match=r"class 0 has 43 training samples, fewer than one per client. Accepted: 1 to 43"
    ):
        deal(dataset, options(partition="iid-balanced", clients=44), 0)


def test_one_client_per_writer() -> None:
    dataset = toy([0, 1, 0, 1, 1], [0, 1, 1], writers=[7, 3, 7, 9, 3])
    dealt = deal(dataset, options(partition="writers", clients=0), 0)
    assert [dealt.train.of(k).tolist() for k in range(3)] == [[1, 4], [0, 2], [3]]
    assert [dealt.test.of(k).tolist() for k in range(3)] == [[1], [0, 2], []]
    assert len(deal(dataset, options(partition="writers", clients=2), 0).train) == 2
    with pytest.raises(RequestError, match=r"data.clients = 4 .* 3 writers. Accepted: 1 to 3, or 0 for all"):
        deal(dataset, options(partition="writers", clients=4), 0)
    with pytest.raises(RequestError, match=r"data.source = 'digits' does not say who wrote its images"):
        deal(toy([0, 1]), options(partition="writers", clients=2), 0)


IM10 = [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
IM100 = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


@pytest.mark.parametrize(
    ("per_class", "factor", "total", "counts"),
    [(5000, 10, 20431, IM10), (5000, 100, 12406, IM100), (6000, 10, 24516, None), (6000, 100, 14886, None)],
)
def test_long_tail_counts_of_the_spec(per_class: int, factor: float, total: int, counts: list[int] | None) -> None:
    labels = even(10, per_class)
    kept = long_tail(labels, 10, factor, np.random.default_rng(0))
    assert len(set(kept.tolist())) == total
    assert counts is None or np.bincount(labels[kept]).tolist() == counts


def test_a_long_tail_is_cut_from_the_largest_class() -> None:
    """n_max = 10 in class 1, IM = 4: 10, 5 and 2.5 at most, and class 0 has but 4."""
    labels = np.repeat([0, 1, 2], [4, 10, 8])
    kept = long_tail(labels, 3, 4.0, np.random.default_rng(0))
    assert np.bincount(labels[kept]).tolist() == [4, 5, 2]


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    dataset = toy(even(10, 50))
    a, b, c = (deal(dataset, options(partition=name, clients=10), seed) for seed in (1, 1, 2))
    assert (a.train.order == b.train.order).all()
    assert (a.test.order == b.test.order).all()
    assert a.train.order.tolist() != c.train.order.tolist()


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("clients", [0, 501])
def test_an_impossible_number_of_clients_is_refused(name: str, clients: int) -> None:
    with pytest.raises(RequestError, match=rf"data.clients = {clients} .* Accepted: 1 to 500"):
        deal(toy(even(10, 50)), options(partition=name, clients=clients), 0)


@pytest.mark.parametrize("name", ["iid", "shards", "shards-sorted"])
def test_a_million_clients(name: str) -> None:
    dealt = deal(toy(even(10, 200_000), even(10, 1000)), options(partition=name, clients=10**6, shards=1), 0)
    assert (dealt.train.sizes == 2).all()
    assert len(dealt.test.order) == 10_000
    assert dealt.test.sizes.max() == 1


def test_test_data_dealt_anew_are_independent_of_train() -> None:
    """Spec 9.5: one class per client in train, all ten in test."""
    dataset = toy(even(10, 100), even(10, 1000))
    dealt = deal(dataset, options(clients=10, shards=1, test_shards=100), 0)
    assert distinct(dealt.train, dataset.train.labels) == 1
    assert distinct(dealt.test, dataset.test.labels) > 9.9
    assert owned_once(dealt.test, 10_000)
    with pytest.raises(RequestError, match=r"data.test_shards = 3: 5 × 3 shards do not divide among 10 classes"):
        deal(dataset, options(clients=5, shards=2, test_shards=3), 0)


def test_every_partition_says_what_it_does() -> None:
    assert all((partition.__doc__ or "").strip().endswith(".") for partition in partitions.values())
