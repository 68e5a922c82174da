"""A memory of features beside the network (kNN-Per, spec 19.11): by hand, and in stacks of ragged clients."""

from __future__ import annotations

import math

import pytest
import torch
from tests.measure.test_shifts import go
from torch.testing import assert_close

from torso.measure.neighbours import Memory

FEATURES = torch.tensor([[[0.0], [1.0], [3.0], [50.0]]])  # one client; the last is padding
LABELS = torch.tensor([[0, 0, 1, 1]])
REAL = torch.tensor([[1.0, 1.0, 1.0, 0.0]])


def memory(said: torch.Tensor) -> Memory:
    return Memory(FEATURES, LABELS, REAL, said)


def test_neighbours_vote_with_the_exponential_of_their_distance() -> None:
    """At 1 the distances are 1, 0 and 2: e⁻¹ + 1 for class 0, e⁻² for class 1. Padding has no vote."""
    zero, one = math.exp(-1) + 1, math.exp(-2)
    found = memory(torch.zeros(1, 4, 2)).answer(torch.tensor([[[1.0]]]))
    assert_close(found, torch.tensor([[[zero, one]]]) / (zero + one))


def test_a_sample_is_not_its_own_neighbour() -> None:
    """At 0, left out: distances 1 and 3. One sample alone has no neighbours, and nobody votes."""
    zero, one = math.exp(-1), math.exp(-3)
    found = memory(torch.zeros(1, 4, 2)).answer(FEATURES, without_itself=True)[0, 0]
    assert_close(found, torch.tensor([zero, one]) / (zero + one))
    alone = Memory(FEATURES[:, :1], LABELS[:, :1], REAL[:, :1], torch.zeros(1, 1, 2))
    assert alone.answer(alone.features, without_itself=True).tolist() == [[[0.0, 0.0]]]


@pytest.mark.parametrize(("right", "share"), [(1.0, 0.0), (0.0, 1.0)])
def test_the_share_goes_to_whoever_knows_better(right: float, share: float) -> None:
    """A network that knows the labels needs no memory; one that is always wrong leaves it everything."""
    said = torch.full((1, 4, 2), 1 - right)
    said.scatter_(-1, LABELS.unsqueeze(-1), right)
    near = Memory(torch.tensor([[[0.0], [0.1], [9.0], [9.1]]]), LABELS, torch.ones(1, 4), said)
    assert near.best_share().tolist() == pytest.approx([share])


def test_two_networks_in_a_stack_choose_for_themselves() -> None:
    knows = torch.nn.functional.one_hot(LABELS, 2).float()
    both = Memory(*(torch.cat([t, t]) for t in (FEATURES, LABELS, torch.ones(1, 4))), torch.cat([knows, 1 - knows]))
    assert both.best_share()[0] == 0
    assert both.best_share()[1] > 0


def test_ragged_clients_in_a_stack_and_one_by_one() -> None:
    """An almost untrained network: the memory knows more of the client's classes."""
    alone, together = (go(engine, ["initial", "neighbours"]) for engine in ("one-by-one", "batched"))
    assert alone.accuracy["neighbours"].clients == pytest.approx(together.accuracy["neighbours"].clients, abs=1e-3)
    assert alone.accuracy["neighbours"].mean > alone.accuracy["initial"].mean
