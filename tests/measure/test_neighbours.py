"""A memory of features beside the network (kNN-Per, spec 19.11): by hand, and in stacks of ragged clients."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.measure.test_shifts import go
from torch.testing import assert_close

from torso import Config, run
from torso.data import Split
from torso.measure.neighbours import Memory
from torso.nets import Network

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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


def told_by_loop(features: Floats, labels: Ints, classes: int, x: Floats, out: int = -1) -> Floats:
    """Σ exp(−‖x − f_i‖) for each class over the 10 nearest of the remembered samples but number `out`, over its sum:
    in NumPy, one sample at a time."""
    pairs = zip(features, labels, strict=True)
    far = sorted((float(np.sqrt(((x - f) ** 2).sum())), int(y)) for i, (f, y) in enumerate(pairs) if i != out)
    votes = np.zeros(classes)
    for distance, label in far[:10]:
        votes[label] += math.exp(-distance)
    found: Floats = votes / votes.sum()
    return found


def share_by_loop(features: Floats, labels: Ints, said: Floats) -> float:
    """The share of 0, 0.1, …, 1 with the best mean log-probability, each sample left out in its turn."""
    near = [told_by_loop(features, labels, said.shape[1], x, i) for i, x in enumerate(features)]

    def score(share: float) -> float:
        return sum(
            math.log(max(share * p[y] + (1 - share) * q[y], 1e-6)) for p, q, y in zip(near, said, labels, strict=True)
        )

    return max((step / 10 for step in range(11)), key=score)


def test_votes_and_share_are_those_of_a_plain_program() -> None:
    """16 samples in float64, so that the 10 nearest are not all. A share between 0 and 1 is best."""
    rng = np.random.default_rng(0)
    labels = np.arange(16) % 3
    features = rng.normal(size=(16, 2)) + 2 * labels[:, None]
    said = 0.7 * rng.dirichlet(np.ones(3), size=16) + 0.3 * np.eye(3)[labels]
    whole = Memory(*(torch.tensor(each)[None] for each in (features, labels, np.ones(16), said)))
    x = rng.normal(size=(4, 2)) + 2
    votes = np.stack([told_by_loop(features, labels, 3, each) for each in x])
    assert_close(whole.answer(torch.tensor(x)[None])[0], torch.tensor(votes))
    share = share_by_loop(features, labels, said)
    assert 0 < share < 1
    assert whole.best_share().item() == pytest.approx(share)
    wrong = np.full((9, 2), 50.0), np.zeros(9, dtype=np.int64), np.zeros(9), np.tile([0.0, 0.5, 0.5], (9, 1))
    both = zip((features, labels, np.ones(16), said), wrong, strict=True)
    padded = Memory(*(torch.tensor(np.concatenate(each))[None] for each in both))
    assert padded.best_share().item() == pytest.approx(share)  # padding has no say, though the network is wrong there


def test_the_measure_is_a_plain_programs() -> None:
    """Clients whose own head differs from the generic one: features, votes, share and answers, sample by sample."""
    method = {"name": "fedrod-linear", "personal": "held"}
    data = {"source": "synthetic", "clients": 4, "partition": "dirichlet-class", "alpha": 0.5}
    sizes = {"samples": 200, "test_samples": 80, "noise": 1.5}
    result = run(
        Config(
            method=method,
            data={**data, "synthetic": sizes},
            train={"rounds": 3, "local_epochs": 2, "fraction": 1.0, "lr": 0.02, "batch_size": 10},
            measure={"names": ["initial", "neighbours"]},
        )
    )
    federation, found = result.federation, []
    assert federation is not None
    for client, net in result.networks(personal=False):

        def said(split: Split, net: Network = net, client: int = client) -> tuple[Floats, Ints, Floats]:
            rows = split.rows(client)
            x = net.prepare(split.samples[rows])
            with torch.no_grad():
                features, told = net.features(x), net(x).softmax(dim=1)
            return features.double().numpy(), split.labels[rows].numpy(), told.double().numpy()

        features, labels, told = said(federation.train)
        share = share_by_loop(features, labels, told)
        right = [
            int(np.argmax(share * told_by_loop(features, labels, told.shape[1], x) + (1 - share) * q)) == y
            for x, y, q in zip(*said(federation.test), strict=True)
        ]
        found.append(100 * float(np.mean(right)))
    assert found == pytest.approx(list(result.accuracy["neighbours"].clients))
