"""Two heads mixed for each test sample without its label (FedTHE, spec 19.22): by hand, and in stacks of clients."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso import Config, Result, run
from torso.data import Split
from torso.errors import RequestError
from torso.measure.head_ensemble import ALPHA, BETA, HeadEnsemble
from torso.nets import Network, Output
from torso.nets.dual import STEPS, DualHead, generic_share

Floats = npt.NDArray[np.float64]


def ensemble(generic: float, own: float) -> HeadEnsemble:
    """One client, one feature: where those of all clients lie, and its own."""
    return HeadEnsemble(torch.tensor([[generic]]), torch.tensor([[own]]))


def said(features: list[float], generic: list[list[float]], own: list[list[float]]) -> Output:
    return Output(torch.tensor([features]).unsqueeze(-1), torch.tensor([generic]), torch.tensor([own]))


def test_history_is_a_moving_average_over_samples_and_batches() -> None:
    """Features 1, 3, 5: histories 1, 0.1·3 + 0.9·1 = 1.2, 0.1·5 + 0.9·1.2 = 1.58; seen 0.3·h + 0.7·history."""
    assert (ALPHA, BETA) == (0.1, 0.3)
    whole = ensemble(0.0, 0.0).seen(torch.tensor([[[1.0], [3.0], [5.0]]]))
    assert_close(whole.flatten(), torch.tensor([1.0, 0.9 + 0.84, 1.5 + 1.106]))
    parts = ensemble(0.0, 0.0)
    again = torch.cat([parts.seen(torch.tensor([[[1.0]]])), parts.seen(torch.tensor([[[3.0], [5.0]]]))], dim=1)
    assert torch.equal(again, whole)


def test_heads_that_differ_are_told_apart_by_features() -> None:
    """Sure of different classes: the cosine of their probabilities is about 0, so the nearer centre decides."""
    generic, own = [[20.0, 0.0]], [[0.0, 20.0]]
    assert ensemble(1.0, 9.0).weights(said([1.0], generic, own)).tolist() == [[1.0]]
    assert ensemble(1.0, 9.0).weights(said([9.0], generic, own)).tolist() == [[0.0]]
    assert ensemble(1.0, 9.0)(said([1.0], generic, own)).tolist() == [[0]]
    assert ensemble(1.0, 9.0)(said([9.0], generic, own)).tolist() == [[1]]


def test_heads_that_agree_are_told_apart_by_entropy() -> None:
    """The same probabilities but for how sure they are of class 0; features lie nearer to the unsure head's centre.
    With cosine s: loss(e) = s·H(e) + (1 − s)·(e·far + (1 − e)·near), and all 21 weights are tried by hand."""
    generic, own, near = [4.0, 0.0], [1.0, 0.0], 0.1
    p, q = torch.tensor(generic).softmax(0), torch.tensor(own).softmax(0)
    s = float((p @ q) / (p.norm() * q.norm()))

    def loss(e: float) -> float:
        z = e * 4.0 + (1 - e) * 1.0
        first = 1 / (1 + math.exp(-z))
        entropy = -first * math.log(first) - (1 - first) * math.log(1 - first)
        return s * entropy + (1 - s) * (e * 0.3 + (1 - e) * near)

    values = [loss(step / STEPS) for step in range(STEPS + 1)]
    expected = values.index(min(values)) / STEPS
    found = ensemble(0.3, -near).weights(said([0.0], [generic], [own]))
    assert found.item() == pytest.approx(expected)
    assert expected == 1.0  # the surer head, against its features: entropy weighs more where heads agree
    assert all(later < before for before, later in pairwise(values))


def test_clients_in_a_stack_have_histories_of_their_own() -> None:
    features = torch.tensor([[[1.0], [3.0]], [[-2.0], [7.0]]])
    both = HeadEnsemble(torch.zeros(2, 1), torch.zeros(2, 1)).seen(features)
    alone = [HeadEnsemble(torch.zeros(1, 1), torch.zeros(1, 1)).seen(features[k : k + 1]) for k in (0, 1)]
    assert torch.equal(both, torch.cat(alone))


def share_by_loop(generic: Floats, own: Floats, far: float, near: float) -> float:
    """The best of 0, 0.05, …, 1 for s·H(e) + (1 − s)·(e·far + (1 − e)·near): NumPy, one sample."""

    def softmax(z: Floats) -> Floats:
        made: Floats = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        return made

    p, q = softmax(generic), softmax(own)
    s = p @ q / np.sqrt((p @ p) * (q @ q))

    def loss(e: float) -> float:
        mixed = softmax(e * generic + (1 - e) * own)
        return float(s * -(mixed * np.log(mixed)).sum() + (1 - s) * (e * far + (1 - e) * near))

    return min((step / 20 for step in range(21)), key=loss)


def test_shares_are_those_of_a_plain_program() -> None:
    """60 samples in float64, of which some agree and some do not."""
    rng = np.random.default_rng(0)
    generic, own = (2 * rng.normal(size=(60, 3)) for _ in range(2))
    seen, centres = rng.normal(size=(60, 2)), rng.normal(size=(2, 2))
    tensors = (torch.tensor(each)[None] for each in (generic, own, seen, centres[:1], centres[1:]))
    found = generic_share(*tensors)[0]
    distances = np.linalg.norm(seen[:, None] - centres, axis=2)
    wanted = [share_by_loop(z, q, far, near) for z, q, (far, near) in zip(generic, own, distances, strict=True)]
    assert found.tolist() == pytest.approx(wanted)
    assert sum(0 < share < 1 for share in wanted) >= 5


def test_the_measure_is_a_plain_programs() -> None:
    """Features, history, distances, shares and answers, sample by sample, for every client."""
    result, found, shares = go("one-by-one"), [], []
    federation, state = result.federation, result.state
    assert federation is not None
    assert state is not None
    everybody = state.server.statistics["centre"].double().numpy()
    for client, net in result.networks():

        def seen(split: Split, net: Network = net, client: int = client) -> tuple[Floats, ...]:
            rows = split.rows(client)
            head = net.head
            assert isinstance(head, DualHead)
            with torch.no_grad():
                features = net.features(net.prepare(split.samples[rows]))
                said = features, head.generic(features), head.personal(features), split.labels[rows]
            return tuple(each.double().numpy() for each in said)

        mine = seen(federation.train)[0].mean(axis=0)
        past, right = None, []
        for h, generic, own, label in zip(*seen(federation.test), strict=True):
            past = h if past is None else 0.1 * h + 0.9 * past
            at = 0.3 * h + 0.7 * past
            share = share_by_loop(generic, own, np.linalg.norm(at - everybody), np.linalg.norm(at - mine))
            right.append(np.argmax(share * generic + (1 - share) * own) == label)
            shares.append(share)
        found.append(100 * float(np.mean(right)))
    assert found == pytest.approx(list(result.accuracy["test_time"].clients))
    assert 0.05 < np.mean(shares) < 0.95, "both heads have a part in it"


NAMES = ["initial", "personalized", "generic", "test_time", "test_time_shifted", "test_time_corrupted"]


def go(engine: str, **method: str) -> Result:
    data = {"source": "synthetic", "clients": 5, "partition": "dirichlet-class", "alpha": 0.5}
    return run(
        Config(
            method={"name": "fedthe", **method},
            data={**data, "synthetic": {"samples": 250, "test_samples": 100}},
            train={"rounds": 3, "local_epochs": 1, "fraction": 0.6, "lr": 0.05},
            measure={"names": NAMES, "severities": [3], "corruptions": ["contrast"]},
            run={"engine": engine, "precision": "fp32"},
        )
    )


def test_stacked_equals_one_by_one_and_the_personal_head_stays() -> None:
    alone, together = go("one-by-one"), go("batched")
    for name in NAMES:
        assert alone.accuracy[name].mean == pytest.approx(together.accuracy[name].mean, abs=1e-3)
    assert alone.state is not None
    centre: Tensor = alone.state.server.statistics["centre"]
    assert float(centre.norm()) > 0
    kept = next(iter(alone.state.clients.values())).kept
    assert {name.rpartition(".")[0] for name in kept} == {"head.personal"}


def test_methods_without_two_heads_or_a_centre_are_refused() -> None:
    for method in ("fedavg", "fedrod-linear"):
        with pytest.raises(RequestError, match=r"measure\.names = 'test_time' mixes two heads.*'fedthe'"):
            run(Config(method=method, data={"source": "synthetic"}, measure={"names": ["test_time"]}))
