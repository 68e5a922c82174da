"""Parts of the training samples, on which methods are compared. Test data are not used.

First, all arms are trained without part A and measured on A. The best are trained again, with another seed, without
part B and measured on B. The best of these are trained without part C and measured on C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from torso.data import Federation
from torso.data.draws import held_out, mixed
from torso.data.federation import Split
from torso.data.images import Ints
from torso.data.rows import Rows
from torso.errors import RequestError

ENOUGH = 2000  # samples of a part: more would not change the comparison
SHARES = (0.1, 0.2)  # least and largest share of the training samples for a part
PARTS = 3


@dataclass(frozen=True)
class Parts:
    """The same clients three times: tested on part A, on part B, on part C."""

    federations: tuple[Federation, ...]
    share: float  # of the training samples that each part has


def parts_of(federation: Federation, seed: int) -> Parts:
    """The parts of a federation's training samples; raises RequestError if clients have too few samples."""
    train = federation.train
    rows = Rows(train.order.cpu().numpy(), train.offsets)
    share = float(np.clip(ENOUGH / max(len(rows.order), 1), *SHARES))
    _, left = held_out(rows, PARTS * share, seed)
    held: list[Rows] = []
    for number in range(PARTS - 1, 0, -1):
        left, part = held_out(left, 1 / (number + 1), seed + PARTS - number)
        held.append(part)
    if not len(held[0].order):
        raise RequestError(
            f"the clients have at most {train.sizes.max()} training samples, but torso advise needs {PARTS} parts with "
            f"{100 * share:.0f} % of a client's samples each. Expected: clients with more samples"
        )
    return Parts(tuple(_tested_on(federation, rows, part, seed) for part in (*held, left)), share)


def only(federation: Federation, clients: Ints) -> Federation:
    """The federation with only these clients in training. This changes nothing for a client that trains alone."""
    others = np.setdiff1d(np.arange(federation.clients), clients)
    return replace(federation, newcomers=others)


def _tested_on(federation: Federation, every: Rows, held: Rows, seed: int) -> Federation:
    """The federation with `held` training samples as test samples. The clients train on the others."""
    train, device = federation.train, federation.device
    kept, tested = _without(every, held), mixed(held, seed)
    taken = torch.from_numpy(tested.order).to(device)
    hidden = torch.from_numpy(held.order).to(device)
    return replace(
        federation,
        train=replace(train, order=torch.from_numpy(kept.order).to(device), offsets=kept.offsets),
        test=Split(train.samples[taken], train.labels[taken], torch.arange(len(taken), device=device), tested.offsets),
        server_rows=federation.server_rows[~torch.isin(federation.server_rows, hidden)],
        meta_rows=federation.meta_rows[~torch.isin(federation.meta_rows, hidden)],
    )


def _without(every: Rows, held: Rows) -> Rows:
    """Each client's rows that are not held out, in ascending order."""
    kept = [np.setdiff1d(every.of(client), held.of(client)) for client in range(len(every))]
    return Rows.from_sizes(np.concatenate(kept), every.sizes - held.sizes)
