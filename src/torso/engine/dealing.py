"""Who does what on a cluster: a function of the clients, their costs and the number of workers, and of nothing else.

So a run that is resumed, or in which a worker was replaced, deals its clients as one that was left alone does, and adds
the same numbers in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise


def pieces(clients: Sequence[int], workers: int) -> list[Sequence[int]]:
    """One stretch of the clients for each worker, as long as the others: results stay in the order of the clients."""
    edges = [len(clients) * w // workers for w in range(workers + 1)]
    return [clients[start:stop] for start, stop in pairwise(edges)]


def home(client: int, clients: int, workers: int) -> int:
    """The worker that holds what a client keeps, where it can: as `pieces` deals all clients."""
    return min(max(client, 0) * workers // max(clients, 1), workers - 1)


def shares(clients: Sequence[int], costs: Sequence[float], homes: Sequence[int], workers: int) -> list[list[int]]:
    """The clients of each worker, in their order: nobody's share is more than one client above the mean.

    The longest first. A client goes home while that keeps the worker within the mean; the others go where least is to
    be done."""
    mean = sum(costs) / workers
    load, place, rest = [0.0] * workers, [0] * len(clients), []
    for at in sorted(range(len(clients)), key=lambda i: -costs[i]):  # stable: equals in the order of the clients
        worker = homes[at]
        if load[worker] + costs[at] <= mean:
            load[worker] += costs[at]
            place[at] = worker
        else:
            rest.append(at)
    least = [(done, worker) for worker, done in enumerate(load)]
    heapq.heapify(least)
    for at in rest:
        done, place[at] = heapq.heappop(least)
        heapq.heappush(least, (done + costs[at], place[at]))
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for client, worker in zip(clients, place, strict=True):
        dealt[worker].append(client)
    return dealt
