from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torso.data.rows import Rows


def test_rows_by_hand() -> None:
    rows = Rows.from_owner(np.array([2, 0, -1, 2, 0]), 4)
    assert [rows.of(k).tolist() for k in range(4)] == [[1, 4], [], [0, 3], []]
    assert rows.sizes.tolist() == [2, 0, 2, 0]
    assert len(rows) == 4


@given(st.lists(st.integers(-1, 6), max_size=40))
def test_lists_and_owners_say_the_same(owner: list[int]) -> None:
    lists = [[i for i, k in enumerate(owner) if k == client] for client in range(7)]
    a, b = Rows.from_owner(np.array(owner, np.int64), 7), Rows.from_lists(lists)
    assert a.order.tolist() == b.order.tolist()
    assert a.offsets.tolist() == b.offsets.tolist()
    assert a.order.dtype == a.offsets.dtype == b.order.dtype == np.int64
