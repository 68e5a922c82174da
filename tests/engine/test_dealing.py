"""Who does what depends on the clients, their costs and the number of workers alone, and is fair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torso.engine.dealing import split_by_cost, split_evenly

Dealt = st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 1000))


@given(Dealt)
def test_everybody_is_dealt_once_in_order_and_no_share_is_a_client_above_the_mean(
    dealt: tuple[list[int], int, int],
) -> None:
    costs, workers, first = dealt
    clients = [first + 3 * i for i in range(len(costs))]
    found = split_by_cost(clients, costs, workers)
    assert len(found) == workers
    assert [k for share in found for k in share] == clients
    cost = dict(zip(clients, costs, strict=True))
    loads = [sum(cost[k] for k in share) for share in found]
    assert max(loads) <= sum(costs) / workers + max(costs)


def test_a_client_goes_where_most_of_it_lies() -> None:
    """By hand: half of 14 is 7, and the client that costs 7 stands from 5 to 12, most of it in the second half."""
    assert split_by_cost([4, 5, 6, 7], [3, 2, 7, 2], 2) == [[4, 5], [6, 7]]
    assert split_by_cost([4, 5, 6, 7], [2, 7, 2, 3], 2) == [[4, 5], [6, 7]]  # here it stands from 2 to 9
    assert split_by_cost([9], [5], 3) == [[], [9], []]
    assert split_by_cost([], [], 2) == [[], []]


@given(st.integers(0, 50), st.integers(1, 7))
def test_pieces_are_stretches_of_clients_that_all_take_as_long(count: int, workers: int) -> None:
    found = split_evenly(range(count), workers)
    assert [k for piece in found for k in piece] == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert len(found) == workers
