"""Who does what on a cluster: a function of the clients, their costs and the number of workers, and of nothing else.

Each worker has one stretch of the clients, so results come back in the order of the clients, and a sum over them is the
same whatever the number of workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise


def stretches(clients: Sequence[int], costs: Sequence[float], workers: int) -> list[Sequence[int]]:
    """One stretch of the clients for each worker: where the costs so far have reached w times the mean share, worker w
    is through. So nobody has more than one client above the mean."""
    if not clients:
        return [clients] * workers
    done = list(accumulate(costs))
    half = [total - cost / 2 for total, cost in zip(done, costs, strict=True)]  # a client goes where most of it lies
    edges = [0, *(bisect_left(half, done[-1] * w / workers) for w in range(1, workers)), len(clients)]
    return [clients[start:stop] for start, stop in pairwise(edges)]


def pieces(clients: Sequence[int], workers: int) -> list[Sequence[int]]:
    """The same for clients that all take as long."""
    edges = [len(clients) * w // workers for w in range(workers + 1)]
    return [clients[start:stop] for start, stop in pairwise(edges)]
