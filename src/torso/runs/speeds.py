"""Simulated time: the duration of a client's visit, drawn from (seed, client) and (seed, round, client).

A synchronous round lasts as long as its slowest visit. Asynchronous rounds: buffered.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import SpeedsConfig

Hours = Callable[[int, Sequence[int]], Sequence[float]]
"""(round in which visits begin, clients) → the duration of each client's visit in hours."""


def hours_of(config: SpeedsConfig, seed: int, round: int, clients: Sequence[int]) -> list[float]:
    """The durations of visits. They are log-normal: hours · exp(sigma · z_client + jitter · z_visit)."""
    return [config.hours * math.exp(_log_hours(config, seed, round, client)) for client in clients]


def _log_hours(config: SpeedsConfig, seed: int, round: int, client: int) -> float:
    own = numpy_generator(seed, "speed", client).standard_normal() if config.sigma else 0.0
    visit = numpy_generator(seed, "visit", round, client).standard_normal() if config.jitter else 0.0
    return float(config.sigma * own + config.jitter * visit)


def an_hour_each(_: int, clients: Sequence[int]) -> list[float]:
    """The durations of visits if the config sets no speeds: one hour each."""
    return [1.0] * len(clients)
