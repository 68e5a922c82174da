"""Dirichlet partitions (spec 10.3). N clients, C classes; shares and counts are [C, N]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torso.data.images import Dataset, Ints
from torso.data.partitions import Partition, assign, clients_of, partitions
from torso.errors import RequestError
from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import DataConfig

Shares = NDArray[np.float64]

_DRAWS = 1000  # most draws; fewer if one draw is large
_NUMBERS = 10**8  # most random numbers of all draws together


@partitions.register("dirichlet-class")
def dirichlet_class(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Each class is split over the clients by a Dirichlet draw, train and test alike (Fed-RoD, spec 10.3)."""
    clients, classes = clients_of(dataset, options), dataset.classes
    totals, test_totals = (np.bincount(s.labels, minlength=classes) for s in (dataset.train, dataset.test))
    rng = numpy_generator(seed, "partition", "dirichlet-class")
    shares = draw_large_enough(options, totals, clients, rng, full=len(dataset.train) / clients)
    train = assign(dataset.train.labels, split(shares, totals), rng)
    test = assign(dataset.test.labels, split(shares, test_totals), rng)
    return Partition(train, test)


@partitions.register("dirichlet-floor")
def dirichlet_floor(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Each client first gets `data.floor` samples of each class, the rest is as dirichlet-class (FedBE, spec 10.3)."""
    clients, classes, floor = clients_of(dataset, options), dataset.classes, options.floor
    totals, test_totals = (np.bincount(s.labels, minlength=classes) for s in (dataset.train, dataset.test))
    rest = totals - clients * floor
    if rest.min() < 0:
        most = totals.min() // clients
        way_out = f"Accepted: 1 to {most}" if most else "Expected: fewer data.clients"
        raise RequestError(
            f"data.floor = {floor}: {clients} clients × {floor} samples are more than the {totals.min()} of class "
            f"{totals.argmin()}. {way_out}"
        )
    rng = numpy_generator(seed, "partition", "dirichlet-floor")
    shares = draw_large_enough(options, rest, clients, rng, full=len(dataset.train) / clients)
    counts = split(shares, rest) + floor
    train = assign(dataset.train.labels, counts, rng)
    test = assign(dataset.test.labels, split(counts.astype(np.float64), test_totals), rng)
    return Partition(train, test)


def draw_large_enough(options: DataConfig, totals: Ints, clients: int, rng: np.random.Generator, full: float) -> Shares:
    """Draw shares [C, N] until every client has at least `data.min_size` samples; `totals` [C]: samples of each class.

    With `data.balance`, a client that already has `full` samples gets no samples of the remaining classes."""
    least, classes = options.min_size, len(totals)
    if clients * least > totals.sum():
        raise RequestError(
            f"data.min_size = {least}: {clients} clients × {least} samples are more than the {totals.sum()} "
            f"training samples. Accepted: 1 to {totals.sum() // clients}"
        )
    draws = min(_DRAWS, max(10, _NUMBERS // (clients * classes)))
    best = 0
    for _ in range(draws):
        shares = draw(options.alpha, classes, clients, rng)
        if options.balance:
            shares = even_out(shares, totals, full)
        best = max(best, int(split(shares, totals).sum(0).min()))
        if best >= least:
            return shares
    raise RequestError(
        f"data.alpha = {options.alpha}, data.clients = {clients}: in {draws} draws some client always had fewer than "
        f"data.min_size = {least} samples (best draw: {best}). Expected: a larger alpha, fewer clients, "
        + ("or a smaller min_size" if options.balance else "a smaller min_size, or data.balance = true")
    )


@partitions.register("dirichlet-client")
def dirichlet_client(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Clients of equal size draw class proportions and samples by them, without replacement (Hsu et al., spec 10.3)."""
    clients, classes = clients_of(dataset, options), dataset.classes
    rng = numpy_generator(seed, "partition", "dirichlet-client")
    mixes = draw(options.alpha, clients, classes, rng)
    left = np.bincount(dataset.train.labels, minlength=classes)
    counts = np.zeros((clients, classes), np.int64)
    for k in range(clients):
        counts[k] = fill(mixes[k], left, len(dataset.train) // clients, rng)
        left -= counts[k]
    test_counts = split(counts.T.astype(np.float64), np.bincount(dataset.test.labels, minlength=classes))
    train = assign(dataset.train.labels, counts.T, rng)
    test = assign(dataset.test.labels, test_counts, rng)
    return Partition(train, test)


def draw(alpha: float, rows: int, columns: int, rng: np.random.Generator) -> Shares:
    """Dirichlet shares [rows, columns], one draw of Dir(α·1) per row; an α beyond floating point is refused."""
    shares = rng.dirichlet(np.full(columns, alpha), size=rows)
    if not np.allclose(shares.sum(1), 1):
        raise RequestError(f"data.alpha = {alpha} is beyond what can be drawn. Accepted: about 1e-3 to 1e6")
    return shares


def split(shares: Shares, totals: Ints) -> Ints:
    """Numbers of samples [C, N] by shares [C, N] and class totals [C]: differences of the floored cumulative sums.

    All samples of a class are given away, unless all its shares are 0."""
    reach = np.cumsum(shares, axis=1)
    reach = np.divide(reach, reach[:, -1:], out=np.zeros_like(reach), where=reach[:, -1:] > 0)
    ends: Ints = np.floor(reach * totals[:, None] + 1e-9).astype(np.int64)
    return np.diff(ends, axis=1, prepend=np.int64(0))


def even_out(shares: Shares, totals: Ints, full: float) -> Shares:
    """The shares [C, N], but class after class a client that already has `full` samples gets share 0 (as in FedNTD and
    PFLlib)."""
    shares = shares.copy()
    held = np.zeros(shares.shape[1], np.int64)  # samples of each client so far
    for c in range(len(shares)):
        not_full = held < full
        shares[c] *= not_full
        if not shares[c].any():
            shares[c] = not_full  # all shares fell on full clients: the other clients share the class equally
        held += split(shares[c : c + 1], totals[c : c + 1])[0]
    return shares


def fill(mix: Shares, left: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Draw `size` samples by the class proportions `mix` [C], without replacement from the remaining samples `left`
    [C]; returns the number of samples of each class [C].

    A draw from an exhausted class is repeated, which equals setting its proportion to 0 and renormalising. If all
    classes of the mix are exhausted, the rest is drawn uniformly from all remaining samples (spec 10.3).
    """
    taken = np.zeros_like(left)
    while (need := size - taken.sum()) > 0:
        weights = np.where(left > taken, mix, 0.0)
        if not weights.sum() > 0:
            return taken + rng.multivariate_hypergeometric(left - taken, need)
        taken += np.minimum(rng.multinomial(need, weights / weights.sum()), left - taken)
    return taken
