"""How the clients of a piece of work are divided over the workers of a cluster.

Each worker gets one contiguous stretch of the clients. So results come back in the order of the clients, and a sum over
them has the same bits for any number of workers. The division depends only on the clients, their costs and the number
of workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise


def split_by_cost(clients: Sequence[int], costs: Sequence[float], workers: int) -> list[Sequence[int]]:
    """One stretch of the clients for each worker, with costs that are as equal as possible.

    Worker w ends where the accumulated cost reaches w times the mean cost per worker. So no worker exceeds the mean by
    more than one client."""
    if not clients:
        return [clients] * workers
    done = list(accumulate(costs))
    # a client that lies across a border goes to the side that has the larger part of its cost: compare its middle
    middle = [total - cost / 2 for total, cost in zip(done, costs, strict=True)]
    inner = [bisect_left(middle, done[-1] * w / workers) for w in range(1, workers)]
    edges = [0, *inner, len(clients)]
    return [clients[start:stop] for start, stop in pairwise(edges)]


def split_evenly(clients: Sequence[int], workers: int) -> list[Sequence[int]]:
    """One stretch of the clients for each worker, all of equal length up to one client."""
    edges = [len(clients) * w // workers for w in range(workers + 1)]
    return [clients[start:stop] for start, stop in pairwise(edges)]
