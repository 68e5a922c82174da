"""Training samples in three: to learn from, to choose by (part A), and to judge the choice by (part B).

Test data are not touched. The tournament learns without A and B, and is measured on A. The judgement learns from A as
well, and is measured on B, which nothing was chosen by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from torso.data import Federation
from torso.data.federation import Split, held_out, mixed
from torso.data.images import Ints
from torso.data.rows import Rows
from torso.errors import RequestError

ENOUGH = 2000  # samples in each part: more make no difference that matters
SHARES = (0.1, 0.2)  # of the training samples, for each part


@dataclass(frozen=True)
class Parts:
    """The same clients twice: `choosing` is tested on part A, `judging` on part B."""

    choosing: Federation
    judging: Federation
    share: float  # of the training samples, in each part


def parts_of(federation: Federation, seed: int) -> Parts:
    train = federation.train
    rows = Rows(train.order.cpu().numpy(), train.offsets)
    share = float(np.clip(ENOUGH / max(len(rows.order), 1), *SHARES))
    kept, held = held_out(rows, 2 * share, seed)
    second, first = held_out(held, 0.5, seed + 1)  # an odd sample is for the judgement
    if not len(first.order):
        raise RequestError(
            f"the clients have {train.sizes.max()} training samples at most, and advice needs two parts of "
            f"{100 * share:.0f} % of a client's samples. Expected: clients with more samples"
        )
    return Parts(
        _tested_on(federation, kept, first, seed), _tested_on(federation, _both(kept, first), second, seed), share
    )


def only(federation: Federation, clients: Ints) -> Federation:
    """The same federation, of which only these clients train. To a client that trains alone it is the same."""
    others = np.setdiff1d(np.arange(federation.clients), clients)
    return replace(federation, newcomers=others)


def _tested_on(federation: Federation, kept: Rows, held: Rows, seed: int) -> Federation:
    """The same clients, who learn from some of their training samples and are tested on others."""
    train, device = federation.train, federation.device
    tested = mixed(held, seed)
    taken = torch.from_numpy(tested.order).to(device)
    hidden = torch.from_numpy(np.setdiff1d(train.order.cpu().numpy(), kept.order)).to(device)
    return replace(
        federation,
        train=replace(train, order=torch.from_numpy(kept.order).to(device), offsets=kept.offsets),
        test=Split(train.samples[taken], train.labels[taken], torch.arange(len(taken), device=device), tested.offsets),
        server_rows=federation.server_rows[~torch.isin(federation.server_rows, hidden)],
        meta_rows=federation.meta_rows[~torch.isin(federation.meta_rows, hidden)],
    )


def _both(first: Rows, second: Rows) -> Rows:
    """The rows of each client in both."""
    owner = np.concatenate([np.repeat(np.arange(len(rows)), rows.sizes) for rows in (first, second)])
    order = np.concatenate([first.order, second.order])
    return Rows.from_sizes(order[np.lexsort((order, owner))], first.sizes + second.sizes)
