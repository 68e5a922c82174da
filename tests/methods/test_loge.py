"""A fixed sparse classifier, an auxiliary head and a personal one (FedLoGe, spec 19.23): by hand and invariants."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from torso import Config
from torso.data.batches import Batch
from torso.engine import OneByOne
from torso.errors import RequestError
from torso.learn.gradients import losses_of
from torso.learn.objectives import CrossEntropy
from torso.nets import Output
from torso.nets.sparse_simplex import Adam, SparseSimplexHead, sparse_simplex
from torso.personal import OwnModelStart, Realigned
from torso.personal.state import State
from torso.runs.job import Simulation
from torso.runs.rounds import play_round
from torso.server.realignment import Realignment
from torso.server.statistics import ServerView

from .by_hand import BODY, HEAD, equal, last
from .tiny import job


def rows(classes: int, features: int, sparsity: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    start = torch.nn.init.orthogonal_(torch.empty(classes, features), generator=generator)
    return sparse_simplex(start, sparsity, 2.0, generator)


def test_the_classifier_is_sparse_of_one_length_and_nearly_a_simplex() -> None:
    """0.6 of 40 entries of each row are 0. The best that ten rows can do is a cosine of −1/9 between all of them."""
    found = rows(10, 40, 0.6)
    assert (found == 0).sum(dim=1).tolist() == [24] * 10
    assert_close(found.norm(dim=1), torch.full((10,), 2.0))
    unit = found / 2
    cosines = (unit @ unit.T).masked_fill(torch.eye(10, dtype=torch.bool), -1.0)
    assert float(cosines.max()) < 0.05  # struck out and not moved it is about 0.5
    assert torch.equal(found, rows(10, 40, 0.6))
    assert not torch.equal(found, rows(10, 40, 0.6, seed=1))


def test_without_zeros_it_is_the_simplex() -> None:
    unit = rows(4, 6, 0.0) / 2
    cosines = (unit @ unit.T)[~torch.eye(4, dtype=torch.bool)]
    assert_close(cosines, torch.full((12,), -1 / 3), atol=2e-2, rtol=0)


def test_its_steps_are_adams_by_hand() -> None:
    """Gradients 3, then -1: means 0.3 and 0.17, squares 0.009 and 0.009991 before their corrections; rate 0.01."""
    number = torch.tensor([1.0], dtype=torch.float64)
    adam = Adam(number)
    adam.step(torch.tensor([3.0], dtype=torch.float64))
    assert float(number) == pytest.approx(1 - 0.01 * 3 / 3, abs=1e-9)
    adam.step(torch.tensor([-1.0], dtype=torch.float64))
    assert float(number) == pytest.approx(0.99 - 0.01 * (0.17 / 0.19) / math.sqrt(0.009991 / 0.001999), abs=1e-9)


def test_each_head_has_its_own_loss_and_only_the_fixed_one_reaches_the_features() -> None:
    """f = (1, 0), label 0. The classifier is I: p₀ = σ(1), so ∂ℓ/∂f = (p − e)·I = (σ(1) − 1, σ(−1)). The two other
    heads are 0: p = ½, so ∂ℓ/∂W = (−½, ½)fᵀ of each, and the sum of losses is −log σ(1) + 2 log 2."""
    head = SparseSimplexHead(2, 2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.classifier.weight.copy_(torch.eye(2))
    features = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    logits = head(features)
    said = Output(features, logits, head.own(features, logits), head.auxiliary_logits(features))
    batch = Batch(features, torch.tensor([[0]]))
    loss = losses_of(said, batch, CrossEntropy(), torch.ones(1, 2))
    small = 1 / (1 + math.e)
    assert loss.item() == pytest.approx(-math.log(1 - small) + 2 * math.log(2))
    loss.sum().backward()
    assert_close(features.grad, torch.tensor([[[-small, small]]]))
    for own in (head.auxiliary, head.personal):
        assert isinstance(own.weight.grad, torch.Tensor)
        assert_close(own.weight.grad, torch.tensor([[-0.5, 0.0], [0.5, 0.0]]))


def test_the_generic_head_has_equal_norms_by_hand() -> None:
    """(3, 4) has length 5 and (0, −2) length 2: both become 1.7 long."""
    model = {
        "head.auxiliary.weight": torch.tensor([[3.0, 4.0], [0.0, -2.0]]),
        "head.auxiliary.bias": torch.tensor([1.0, 2.0]),
    }
    shown = Realignment().shows(ServerView(model=model))
    assert_close(shown["head.classifier.weight"], torch.tensor([[1.02, 1.36], [0.0, -1.7]]))
    assert shown["head.classifier.bias"].tolist() == [1.0, 2.0]


def test_a_clients_head_has_the_norms_of_its_own_by_hand() -> None:
    """‖φ‖ = 5, 1 and 2; the client lacks the last class. ψ₀·(5 + 1), ψ₁·(1 + 1), and never class 2."""
    held = {
        "head.auxiliary.weight": torch.tensor([[[1.0, 0.5], [0.0, 2.0], [7.0, 7.0]]]),
        "head.auxiliary.bias": torch.tensor([[0.5, 0.25, 9.0]]),
        "head.personal.weight": torch.tensor([[[3.0, -4.0], [0.0, 1.0], [2.0, 0.0]]]),
        "head.personal.bias": torch.tensor([[1.0, 2.0, 3.0]]),
        "body": torch.ones(1, 1),
    }
    found = Realigned().begin(
        OwnModelStart(held, held, frozenset(), lambda: pytest.fail("no visit"), lambda: torch.tensor([[4, 1, 0]]))
    )
    assert_close(found["head.personal.weight"], torch.tensor([[[6.0, 3.0], [0.0, 4.0], [0.0, 0.0]]]))
    assert_close(found["head.personal.bias"], torch.tensor([[1.5, 2.25, -1e4]]))
    assert found["body"] is held["body"]


def after(task: Simulation, model: dict[str, torch.Tensor], rounds: int = 3) -> State:
    state = State.begin(model)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        for _ in range(rounds):
            state, _ = play_round(task.plan[0], state, task.roster, engine, seed=0)
    return state


def test_the_body_is_fedbabus_under_the_same_fixed_head() -> None:
    """The two other heads do not reach it."""
    settings = {"local_epochs": 2, "lr": 0.3}
    loge, babu = job("fedloge", **settings), job("fedbabu", **settings)
    fixed = loge.model["head.classifier.weight"]
    one, other = after(loge, loge.model), after(babu, {**babu.model, HEAD: fixed})
    assert_close(one.model[BODY], other.model[BODY])
    assert torch.equal(one.model["head.classifier.weight"], fixed)  # as it is broadcast
    assert not torch.equal(one.model["head.auxiliary.weight"], loge.model["head.auxiliary.weight"])


def test_the_personal_head_stays_and_the_reported_one_is_realigned() -> None:
    state = last(job("fedloge", lr=0.3), 2)
    assert {name for k in (0, 1) for name in state.clients[k].kept} == {"head.personal.weight", "head.personal.bias"}
    assert not equal(state.clients[0].kept, state.clients[1].kept)
    reported = state.server.reported.model
    assert_close(reported["head.classifier.weight"].norm(dim=1), torch.full((2,), 1.7))


@pytest.mark.parametrize(("axis", "choice"), [("statistics", "realignment"), ("personal", "realigned")])
def test_another_head_is_refused(axis: str, choice: str) -> None:
    with pytest.raises(RequestError, match=rf"method\.{axis} = '{choice}'.*Accepted: method\.head = 'sparse-simplex'"):
        job(Config(method={"name": "fedavg", axis: choice}).method)
