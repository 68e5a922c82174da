"""Who does what depends on the clients and the number of workers alone, and is fair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torso.engine.dealing import home, pieces, shares

Dealt = st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 1000))


@given(Dealt)
def test_everybody_is_dealt_once_in_order_and_no_share_is_a_client_above_the_mean(
    dealt: tuple[list[int], int, int],
) -> None:
    costs, workers, first = dealt
    clients = [first + 3 * i for i in range(len(costs))]
    homes = [home(k, clients[-1] + 1, workers) for k in clients]
    found = shares(clients, costs, homes, workers)
    assert sorted(k for share in found for k in share) == clients
    assert all(share == sorted(share) for share in found)
    cost = dict(zip(clients, costs, strict=True))
    loads = [sum(cost[k] for k in share) for share in found]
    assert max(loads) <= sum(costs) / workers + max(costs)


def test_the_longest_go_first_and_fill_the_gaps() -> None:
    """By hand: 7 alone is half of 14, the others make the other half; dealt in order it would be 3 + 2 and 7 + 2."""
    assert shares([4, 5, 6, 7], [3, 2, 7, 2], [0, 0, 0, 0], 2) == [[6], [4, 5, 7]]


def test_a_client_goes_home_while_that_is_fair() -> None:
    """Four equal clients, three of them at home with worker 1: two fit there, the third goes to the other."""
    assert shares([0, 1, 2, 3], [1, 1, 1, 1], [1, 1, 1, 0], 2) == [[2, 3], [0, 1]]


@given(st.integers(0, 50), st.integers(1, 7))
def test_pieces_are_stretches_and_home_is_the_piece_of_all_clients(count: int, workers: int) -> None:
    found = pieces(range(count), workers)
    assert [k for piece in found for k in piece] == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    if count >= workers:
        near = [abs(home(k, count, workers) - w) for w, piece in enumerate(found) for k in piece]
        assert max(near) <= 1
    assert home(-1, count, workers) == 0  # the server
