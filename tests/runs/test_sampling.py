"""Who takes part in a round (spec 1.1 and 1.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from torso.config import DataConfig
from torso.data import Roster, build
from torso.runs.sampling import sample

CPU = torch.device("cpu")


def roster(clients: int, newcomers: int = 0) -> Roster:
    options = DataConfig(source="digits", partition="iid", clients=clients, new_clients=newcomers)
    return build(options, 0, CPU).roster


@pytest.mark.parametrize(
    ("clients", "fraction", "expected"),
    [
        (100, 0.29, 29),  # 0.29 · 100 is 28.999999999999996 in floating point
        (100, 0.57, 57),
        (10, 0.19, 1),
        (10, 0.05, 1),  # never nobody
        (7, 1.0, 7),
    ],
)
def test_the_number_of_participants(clients: int, fraction: float, expected: int) -> None:
    """m = max(⌊N·f + 1e-9⌋, 1)."""
    chosen = sample(roster(clients), fraction, 0, 1)
    assert len(chosen) == len(set(chosen)) == expected


def test_the_fraction_is_of_those_that_train_and_newcomers_are_never_drawn() -> None:
    """20 clients of which 10 come later: half of the others are 5, and each of these as often as any other."""
    there = replace(roster(20, newcomers=10), newcomers=np.array([0, 1, 4, 5, 6, 11, 13, 14, 18, 19]))
    rounds = [sample(there, 0.5, 0, number) for number in range(1, 801)]
    assert {len(chosen) for chosen in rounds} == {5}
    often = np.bincount(np.concatenate(rounds), minlength=20)
    assert often[there.newcomers].tolist() == [0] * 10
    assert often[there.training] / 800 == pytest.approx(0.5, abs=0.08)  # 0.08 is 4.5 standard deviations


def test_rounds_and_seeds_are_drawn_apart() -> None:
    some = roster(100)
    drawn = [sample(some, 0.1, seed, number) for seed in range(2) for number in range(1, 21)]
    assert len(set(drawn)) == len(drawn)
    assert drawn[0] == sample(some, 0.1, 0, 1)
