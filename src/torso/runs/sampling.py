"""Draw the participants of a round, and compute their weights in a mean."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from torso.data import Roster
from torso.randomness import numpy_generator
from torso.runs.stage import Stage


def sample(
    roster: Roster, fraction: float, seed: int, round: int, here: Collection[int] | None = None, least: int = 1
) -> tuple[int, ...]:
    """Draw m = max(⌊N·f⌋, least) training clients without replacement, the same for every method at a seed (spec 1.1).

    `here`: the available clients, if not all are; N is then their number. If all are available, the draw is the same as
    without `here`. The time depends on m, not on N (NumPy draws few of many without shuffling all)."""
    newcomers = roster.newcomers
    count = roster.clients - len(newcomers)
    available = None  # None: all training clients
    if here is not None:
        available = [k for k in roster.training.tolist() if k in here]
        if len(available) < count:
            count = len(available)
        else:
            available = None
    size = min(max(math.floor(count * fraction + 1e-9), least), count)
    drawn = np.sort(numpy_generator(seed, "participants", round).choice(count, size, replace=False))
    if available is not None:
        return tuple(available[place] for place in drawn)
    # `drawn` counts training clients only: add to each the number of newcomers before it
    if len(newcomers):
        drawn = drawn + np.searchsorted(newcomers - np.arange(len(newcomers)), drawn, side="right")
    return tuple(drawn.tolist())


def poisson_sample(roster: Roster, chance: float, seed: int, round: int) -> tuple[int, ...]:
    """Draw each training client with this probability, independently of the others. The sample may be empty."""
    drawn = numpy_generator(seed, "participants", round).random(len(roster.training))
    return tuple(roster.training[drawn < chance].tolist())


def participants(
    stage: Stage, roster: Roster, seed: int, round: int, here: Collection[int] | None = None
) -> tuple[int, ...]:
    """The clients that take part in a round. `here`: as in `sample`.

    If a method shares nothing, all clients train in every round (spec 5.1). If clients train nothing and the server
    trains alone, there are no participants. With privacy the sample is drawn from all clients, as the accountant
    assumes, and a client that is not available is missing."""
    if not stage.plan(round):
        return ()
    if stage.privacy:
        seed = stage.privacy.sampling_seed
        if stage.privacy.poisson:
            return poisson_sample(roster, stage.train.fraction, seed, round)
        return sample(roster, stage.train.fraction, seed, round)
    return sample(roster, stage.train.fraction if stage.meets else 1.0, seed, round, here, stage.train.min_clients)


def weights_of(roster: Roster, clients: Sequence[int], weighting: str) -> dict[int, float]:
    """Client -> its weight in a mean over these clients. The weights sum to 1."""
    if not clients:
        return {}
    sizes = roster.sizes_of(clients).astype(np.float64)
    shares = sizes / sizes.sum() if weighting == "samples" else np.full(len(clients), 1 / len(clients))
    return dict(zip(clients, shares.tolist(), strict=True))
