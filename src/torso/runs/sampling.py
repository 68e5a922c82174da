"""Who takes part in a round, and how much each weighs in a mean."""

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
    """m = max(⌊N·f⌋, least) training clients without replacement; the same for every method at one seed (spec 1.1).

    `here`: those who can come, where not everybody can; N is their number then, and the draw is the usual one where all
    are there. Its time depends on m, not on N (NumPy draws few of many without shuffling them all)."""
    newcomers = roster.newcomers
    count = roster.clients - len(newcomers)
    able = None if here is None else [k for k in roster.training.tolist() if k in here]
    if able is not None and len(able) < count:
        count = len(able)
    else:
        able = None
    size = min(max(math.floor(count * fraction + 1e-9), least), count)
    drawn = np.sort(numpy_generator(seed, "participants", round).choice(count, size, replace=False))
    if able is not None:
        return tuple(able[place] for place in drawn)
    # skip the newcomers: the j-th training client has as many newcomers before it as lie at or below it
    if len(newcomers):
        drawn = drawn + np.searchsorted(newcomers - np.arange(len(newcomers)), drawn, side="right")
    return tuple(drawn.tolist())


def poisson_sample(roster: Roster, chance: float, seed: int, round: int) -> tuple[int, ...]:
    """Each training client with this chance, whoever else comes; it may be nobody."""
    drawn = numpy_generator(seed, "participants", round).random(len(roster.training))
    return tuple(roster.training[drawn < chance].tolist())


def participants(
    stage: Stage, roster: Roster, seed: int, round: int, here: Collection[int] | None = None
) -> tuple[int, ...]:
    """Nobody waits for a server that shares nothing: local-only clients all train in every round (spec 5.1).

    Nobody comes where clients train nothing, and the server learns alone. `here`: as in `sample`. Under privacy the
    draw is what the accountant counts on, from all clients: who is not there is missing."""
    if not stage.plan(round):
        return ()
    if stage.privacy:
        seed = stage.privacy.sampling_seed
        if stage.privacy.poisson:
            return poisson_sample(roster, stage.train.fraction, seed, round)
        return sample(roster, stage.train.fraction, seed, round)
    return sample(roster, stage.train.fraction if stage.meets else 1.0, seed, round, here, stage.train.min_clients)


def weights_of(roster: Roster, clients: Sequence[int], weighting: str) -> dict[int, float]:
    """The shares of clients in a mean over them, which sum to 1."""
    if not clients:
        return {}
    sizes = roster.sizes_of(clients).astype(np.float64)
    shares = sizes / sizes.sum() if weighting == "samples" else np.full(len(clients), 1 / len(clients))
    return dict(zip(clients, shares.tolist(), strict=True))
