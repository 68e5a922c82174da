"""`build`: from options to the tensors of a federation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torso.config import SyntheticConfig
from torso.data import build, load
from torso.data.draws import draw_meta_rows, draw_newcomers, draw_server_rows
from torso.errors import RequestError

from .samples import options

CPU = torch.device("cpu")


def test_a_federation_of_digits() -> None:
    federation = build(options(), 0, CPU)
    assert federation.clients == 50
    assert federation.augment == "none"
    assert federation.train.samples.dtype == torch.uint8
    assert federation.train.samples.is_contiguous()
    assert federation.train.labels.dtype == federation.train.order.dtype == torch.int64
    assert len(federation.newcomers) == len(federation.server_rows) == 0
    assert sorted(federation.train.order.tolist()) == list(range(len(federation.train.labels)))


def test_class_counts_are_what_each_client_holds() -> None:
    federation = build(options(partition="dirichlet-class", clients=7), 3, CPU)
    split = federation.train
    by_hand = [torch.bincount(split.labels[split.rows(k)], minlength=10).tolist() for k in range(7)]
    assert federation.class_counts.tolist() == by_hand
    assert federation.class_counts.sum(1).tolist() == split.sizes.tolist()


def test_newcomers_never_train_and_somebody_does() -> None:
    assert draw_newcomers(100, 50, 0).tolist() == sorted(set(draw_newcomers(100, 50, 0).tolist()))
    assert draw_newcomers(100, 50, 0).tolist() != draw_newcomers(100, 50, 1).tolist()
    with pytest.raises(RequestError, match=r"data.new_clients = 50: of 50 clients .* Accepted: 0 to 49"):
        build(options(new_clients=50), 0, CPU)


def test_the_server_gets_its_fraction_of_the_whole_training_set() -> None:
    """Spec 3.3: without replacement, independent of the partition, not removed from the clients."""
    one, other = (build(options(server_fraction=0.1, partition=p), 5, CPU) for p in ("iid", "shards"))
    assert len(one.server_rows.unique()) == round(0.1 * len(one.train.labels))
    assert one.server_rows.tolist() == other.server_rows.tolist()
    assert len(other.train.order) == len(other.train.labels)
    assert len(draw_server_rows(1000, 1e-9, 0)) == 1
    assert draw_server_rows(10, 1.0, 0).tolist() == list(range(10))


def test_everybody_gets_as_many_samples_of_every_class() -> None:
    """Spec 5.7: a number of training samples of each class, drawn by the seed; all of a class that has fewer."""
    labels = np.repeat([2, 0, 1], [6, 3, 9])
    drawn = [draw_meta_rows(labels, 4, seed) for seed in range(20)]
    for rows in drawn:
        assert np.bincount(labels[rows]).tolist() == [3, 4, 4]
        assert len(set(rows.tolist())) == len(rows)
    assert {row for rows in drawn for row in rows.tolist()} == set(range(len(labels)))


def test_the_long_tail_comes_before_the_partition() -> None:
    """Counts int(500 · 10^(−c/9)): 500, 387, 299, 232, 179, 139, 107, 83, 64, 50."""
    long = [500, 387, 299, 232, 179, 139, 107, 83, 64, 50]
    wanted = options(source="synthetic", partition="dirichlet-class", clients=10, imbalance=10)
    federation = build(wanted, 0, CPU)
    assert torch.bincount(federation.train.labels).tolist() == long
    assert federation.class_counts.sum(0).tolist() == long
    assert torch.bincount(federation.test.labels).tolist() == [100] * 10
    both = build(wanted.model_copy(update={"imbalance_test": True}), 0, CPU)
    assert torch.bincount(both.test.labels).tolist() == [100, 77, 59, 46, 35, 27, 21, 16, 12, 10]


def test_augmentation_is_settled() -> None:
    assert build(options(augment="flip"), 0, CPU).augment == "flip"


def test_the_same_seed_is_the_same_federation() -> None:
    wanted = options(source="synthetic", partition="dirichlet-client", new_clients=3)
    a, b, c = (build(wanted, seed, CPU) for seed in (4, 4, 5))
    assert torch.equal(a.train.samples, b.train.samples)
    assert torch.equal(a.train.order, b.train.order)
    assert a.newcomers.tolist() == b.newcomers.tolist()
    assert not torch.equal(a.train.samples, c.train.samples)


def test_a_seed_of_the_data_deals_alike_whatever_the_run() -> None:
    """`data.seed` replaces the run's seed in all draws of data: clients, new clients, samples of the server."""
    how = options(partition="dirichlet-floor", clients=7, new_clients=2, server_fraction=0.1, seed=5)
    one, other, usual = build(how, 0, CPU), build(how, 1, CPU), build(how.model_copy(update={"seed": -1}), 5, CPU)
    for found in (other, usual):
        assert torch.equal(one.train.order, found.train.order)
        assert torch.equal(one.test.order, found.test.order)
        assert one.newcomers.tolist() == found.newcomers.tolist()
        assert torch.equal(one.server_rows, found.server_rows)
    assert not torch.equal(one.train.order, build(how.model_copy(update={"seed": -1}), 0, CPU).train.order)
    made = options(source="synthetic", synthetic=SyntheticConfig(samples=50, test_samples=10), clients=5, seed=5)
    assert torch.equal(build(made, 0, CPU).train.samples, build(made, 1, CPU).train.samples)


def test_a_million_clients_become_a_federation() -> None:
    size = SyntheticConfig(samples=2_000_000, test_samples=100_000, size=1)
    federation = build(options(source="synthetic", clients=10**6, partition="iid", synthetic=size), 0, CPU)
    assert (federation.train.sizes == 2).all()
    assert len(federation.train.rows(999_999)) == 2
    assert federation.class_counts.shape == (10**6, 10)


def test_a_federation_is_where_it_was_asked_to_be() -> None:
    federation = build(options(), 0, torch.device("meta"))
    assert federation.device.type == federation.train.order.device.type == federation.test.labels.device.type == "meta"
    assert isinstance(federation.train.offsets, np.ndarray)


def test_validation_is_held_out_of_what_clients_learn_from() -> None:
    whole = build(options(partition="dirichlet-class", clients=9), 2, CPU)
    config = options(partition="dirichlet-class", clients=9, validation=0.2, server_fraction=1.0, meta_per_class=99)
    parted = build(config, 2, CPU)
    held = parted.test
    assert (held.sizes == np.floor(0.2 * whole.train.sizes + 1e-9)).all()
    assert len(parted.test_order) == len(held.labels) == held.sizes.sum()  # the test split has only held-out samples
    for client in range(9):
        mine, learned = (split.rows(client).tolist() for split in (whole.train, parted.train))
        assert len(mine) == len(learned) + held.sizes[client]
        assert [row for row in mine if row in set(learned)] == learned
        left = [row for row in mine if row not in set(learned)]
        for rows in (parted.server_rows, parted.meta_rows):  # the server does not have them either
            assert not set(rows.tolist()) & set(left)
        assert torch.equal(held.labels[held.rows(client)].sort().values, whole.train.labels[left].sort().values)
    assert held.labels.tolist() != build(config, 3, CPU).test.labels.tolist()


@pytest.mark.parametrize(("clients", "most", "least"), [(50, 28, 0.0358), (10, 144, 0.007)])
def test_a_share_that_holds_nothing_out_is_refused_with_the_least_that_does(
    clients: int, most: int, least: float
) -> None:
    """1442 digits, an equal number each: 1/28 = 0.03571…, 1/144 = 0.00694…, rounded up."""
    wanted = rf"data\.validation = 0\.005 holds nothing out: .* {most} training samples\. Accepted: {least} or more"
    with pytest.raises(RequestError, match=wanted):
        build(options(partition="iid", clients=clients, validation=0.005), 0, CPU)
    assert len(build(options(partition="iid", clients=clients, validation=least), 0, CPU).test.labels) > 0
    with pytest.raises(RequestError, match=r"more than 1 training sample\. Accepted: 0, or fewer data\.clients"):
        build(options(partition="iid", clients=1442, validation=0.9), 0, CPU)


def test_more_test_shards_than_test_samples_are_refused() -> None:
    with pytest.raises(RequestError, match=r"data\.test_shards = 1000000000: the test set has 355 .* 0 to 355"):
        build(options(test_shards=10**9), 0, CPU)


def test_validation_and_test_data_dealt_anew_exclude_each_other() -> None:
    with pytest.raises(RequestError, match=r"data.validation = 0.2 .* data.test_shards = 3"):
        build(options(validation=0.2, test_shards=3), 0, CPU)


def test_statistics_are_those_of_the_training_images() -> None:
    dataset = load(options(source="synthetic", synthetic=SyntheticConfig(channels=3), normalize="statistics"), 0)
    pixels = dataset.train.images.astype(np.float64) / 255
    np.testing.assert_allclose(dataset.mean, pixels.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, pixels.std((0, 1, 2)), rtol=1e-12)


def test_test_data_are_met_in_a_mixed_order_that_is_the_same_every_time() -> None:
    """Files are often sorted by class, and a batch of one class would skew BatchNorm's statistics (spec 9.9)."""
    made = [build(options(clients=5, shards=2), seed, torch.device("cpu")) for seed in (0, 0, 1)]
    assert torch.equal(made[0].test_order, made[2].test_order)
    assert sorted(made[0].test_order.tolist()) == list(range(len(made[0].test.labels)))
    assert torch.equal(made[0].test.order, made[1].test.order)
    for client in range(5):
        labels = made[0].test.labels[made[0].test.rows(client)]
        assert len(labels.unique()) == 1 or (labels.diff() != 0).sum() > len(labels.unique())


def test_the_deck_of_many_clients_is_made_of_their_rows() -> None:
    """A deck of several clients equals their rows, padded with 0; sizes may differ, clients may be one or none."""
    train = build(options(clients=7, partition="dirichlet-class", alpha=0.1), 0, torch.device("cpu")).train
    assert len(set(train.sizes.tolist())) > 1
    for clients in ([0, 1, 2, 3, 4, 5, 6], [4, 1], [2, 2], [3], []):
        deck = train.deck(clients)
        assert deck.clients == tuple(clients)
        assert deck.sizes == tuple(len(train.rows(k)) for k in clients)
        for row, k in zip(deck.index, clients, strict=True):
            mine = train.rows(k)
            assert torch.equal(row[: len(mine)], mine)
            assert not row[len(mine) :].any()


def test_test_samples_may_come_class_by_class() -> None:
    """The same samples of each client, sorted by class; training samples stay."""
    usual, sorted_ = (build(options(clients=10, test_order=order), 0, CPU) for order in ("mixed", "by-class"))
    assert torch.equal(usual.train.order, sorted_.train.order)
    for client in range(10):
        before, after = (found.test.rows(client) for found in (usual, sorted_))
        assert sorted(before.tolist()) == sorted(after.tolist())
        labels = sorted_.test.labels[after].tolist()
        assert labels == sorted(labels)
    assert not torch.equal(usual.test.order, sorted_.test.order)
