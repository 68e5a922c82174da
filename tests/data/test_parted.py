"""The test part that is held out of data without one."""

from __future__ import annotations

import numpy as np

from torso.data.parted import parted


def test_every_client_gives_its_share_of_each_class() -> None:
    owner = np.repeat([0, 1, 2], [100, 10, 4])
    labels = np.concatenate([np.repeat([0, 1], [80, 20]), np.repeat([0, 1], 5), np.arange(4)])
    train, test = parted(owner, labels, 0.2)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(114))
    assert np.bincount(owner[test], minlength=3).tolist() == [20, 2, 0]  # a client of four single classes gives none
    assert np.bincount(labels[test][owner[test] == 0]).tolist() == [16, 4]
    assert np.bincount(labels[test][owner[test] == 1]).tolist() == [1, 1]
    assert {(o, c) for o, c in zip(owner.tolist(), labels.tolist(), strict=True)} == {
        (o, c) for o, c in zip(owner[train].tolist(), labels[train].tolist(), strict=True)
    }


def test_without_clients_and_the_same_every_time() -> None:
    labels = np.arange(50) % 5
    first, again = (parted(None, labels, 0.1) for _ in range(2))
    assert np.array_equal(first[1], again[1])
    assert np.bincount(labels[first[1]]).tolist() == [1] * 5
    assert not np.array_equal(first[1], np.arange(5))  # drawn, not the first of each


def test_other_clients_do_not_change_what_a_client_holds_out() -> None:
    owner, labels = np.arange(90) % 3, np.arange(90) // 3 % 2
    whole = parted(owner, labels, 0.2)[1]
    rest = np.flatnonzero(owner != 1)[1:]  # without client 1, and with one sample less of client 0
    fewer = rest[parted(owner[rest], labels[rest], 0.2)[1]]
    assert np.array_equal(whole[owner[whole] == 2], fewer[owner[fewer] == 2])
