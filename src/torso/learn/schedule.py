"""Schedules of the learning rate (spec 1.4). Rounds count from 1; within a round the rate is constant."""

from __future__ import annotations

import math
from collections.abc import Callable

from torso.registry import Registry

Schedule = Callable[[int, int, float], float]  # (round, rounds, decay) → factor on the initial rate
schedules: Registry[Schedule] = Registry("train.schedule")


@schedules.register("step-half-3q")
def step_half_3q(round: int, rounds: int, decay: float) -> float:
    """×0.1 right after round ⌊R/2⌋ and right after round ⌊3R/4⌋ (FedBABU, FedFN).

    If both are the same round, the rate decays once. If one is round 0, there is no decay after it."""
    return 0.1 ** sum(1 for edge in {rounds // 2, 3 * rounds // 4} if 0 < edge < round)


@schedules.register("exp")
def exponential(round: int, rounds: int, decay: float) -> float:
    """decay^(r − 1) (Fed-RoD: 0.99)."""
    return decay ** (round - 1)


@schedules.register("const")
def constant(round: int, rounds: int, decay: float) -> float:
    """The initial rate throughout (FedNCM)."""
    return 1.0


@schedules.register("cosine")
def cosine(round: int, rounds: int, decay: float) -> float:
    """Half a cosine from 1 towards 0 over the rounds (SphereFed)."""
    return 0.5 * (1 + math.cos(math.pi * (round - 1) / max(rounds, 1)))
