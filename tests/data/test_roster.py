"""The roster: what the server may know of its clients. Sizes and names, but no samples."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from torso.data import Pixels, Roster, build

from .samples import options

FOUR = Roster("four", 3, Pixels(3, 5, 7), np.array([4, 9, 1, 6]), np.array([1, 3]))


def test_those_who_train_and_what_they_have() -> None:
    """Clients 1 and 3 are newcomers: 4 + 1 of the 20 samples are trained on. An image has 3 · 5 · 7 bytes."""
    assert FOUR.clients == 4
    assert FOUR.training.tolist() == [0, 2]
    assert FOUR.samples == 5
    assert FOUR.sizes_of((3, 0)).tolist() == [6, 4]
    assert FOUR.sizes_of(()).tolist() == []
    assert FOUR.input.bytes == 105


def test_the_roster_of_a_simulation_counts_what_is_there() -> None:
    federation = build(
        options(partition="dirichlet-class", clients=7, new_clients=2, server_fraction=0.1, meta_per_class=2),
        3,
        torch.device("cpu"),
    )
    roster = federation.roster
    assert (roster.name, roster.classes, roster.input) == (federation.name, 10, federation.input)
    assert roster.sizes.tolist() == [len(federation.train.rows(k)) for k in range(7)]
    assert roster.newcomers.tolist() == federation.newcomers.tolist()
    assert roster.samples == sum(len(federation.train.rows(k)) for k in roster.training.tolist())
    assert roster.test_samples == len(federation.test.labels)
    assert (roster.server_samples, roster.meta_samples) == (len(federation.server_rows), 20)
    assert not any(isinstance(getattr(roster, each.name), torch.Tensor) for each in fields(roster))
