"""Class embeddings that guide features, a conditional valve and a personal head (GPFL, spec 19.24): by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from torso import Config
from torso.data.batches import Batch
from torso.errors import RequestError
from torso.learn.drift import DriftState, HeadDecay
from torso.learn.gpfl_loss import Guided
from torso.learn.gradients import losses_of
from torso.learn.objectives import CrossEntropy
from torso.methods import methods
from torso.nets import Network, Output, apply, body_of, build, part_names
from torso.nets.gpfl import ConditionMap, GpflHead, Valve
from torso.nets.heads import Gpfl

from .by_hand import BODY, last
from .tiny import job

GPFL = methods["gpfl"]
DISTANCES: tuple[Literal["samples", "squares"], ...] = ("samples", "squares")


def head_of(
    embeddings: list[list[float]], personal: list[list[float]] | None = None, by_samples: bool = False
) -> GpflHead:
    """Its valve lets positive features through as they are."""
    rows = torch.tensor(embeddings)
    head = GpflHead(rows.shape[1], len(rows), bias=False, by_samples=by_samples)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.embeddings.weight.copy_(rows)
        if personal:
            head.personal.weight.copy_(torch.tensor(personal))
    return head


def said_by(head: GpflHead, features: Tensor) -> Output:
    logits = head(features)
    return Output(features, logits, head.own(features, logits), gaps=head.gaps(features))


def test_the_maps_normalise_what_is_positive_by_hand() -> None:
    """x = (3, −5) → (3, 0), of mean and deviation 1.5 → (1, −1) → (2·1 + ½, 3·(−1) + ½)."""
    condition = ConditionMap(2)
    with torch.no_grad():
        condition.linear.weight.copy_(torch.eye(2))
        condition.linear.bias.zero_()
        condition.weight.copy_(torch.tensor([2.0, 3.0]))
        condition.bias.fill_(0.5)
    assert_close(condition(torch.tensor([[3.0, -5.0]])), torch.tensor([[2.5, -2.5]]), atol=1e-4, rtol=0)


def test_the_valve_scales_by_one_more_and_shifts_by_hand() -> None:
    """γ = (1, ½), β = (−1, −4), f = (2, 2): (2·2 − 1, 1.5·2 − 4) = (3, −1), of which −1 is closed."""
    valve = Valve(2)
    with torch.no_grad():
        for each, bias in ((valve.gamma, (1.0, 0.5)), (valve.beta, (-1.0, -4.0))):
            each.weight.zero_()
            each.bias.copy_(torch.tensor(bias))
    assert valve(torch.tensor([[2.0, 2.0]]), torch.ones(1, 2)).tolist() == [[3.0, 0.0]]


class Seen(nn.Module):
    """In place of the valve: the condition itself."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return 0 * x + condition


@pytest.mark.parametrize(("by_samples", "p"), [(False, (1 / 3, 0.5)), (True, (1.0, 1.5))])
def test_the_conditions_are_means_of_the_embeddings_by_hand(by_samples: bool, p: tuple[float, float]) -> None:
    """e = (1, 0), (0, 4), (2, 2): g = (1, 2); with shares ½, ¼, ¼ Σ = (1, 1.5), of three classes p = (⅓, ½). ‖g − e‖² =
    4, 5, 1."""
    head = head_of([[1, 0], [0, 4], [2, 2]], [[1, 0], [0, 1], [0, 0]], by_samples)
    head.valve = Seen()  # type: ignore[assignment]
    facts = head.facts(torch.tensor([[2, 1, 1]]), {"head.embeddings.weight": head.embeddings.weight[None]})
    head.mix = facts["mix"][0]
    features = torch.zeros(1, 1, 2)
    said = said_by(head, features)
    assert_close(said.own, torch.tensor([[[*p, 0.0]]]))
    assert said.gaps is not None
    assert_close(said.gaps, torch.tensor([[[4.0, 5.0, 1.0]]]))
    root = math.sqrt(5)
    assert_close(said.logits, torch.tensor([[[1 / root, 2 / root, 6 / (root * math.sqrt(8))]]]))
    (reached,) = torch.autograd.grad(said.own.sum(), head.embeddings.weight, allow_unused=True)
    assert reached is None  # conditions are not learned through


def test_the_losses_and_their_gradients_by_hand() -> None:
    """f = (3, 4), ‖f‖ = 5, e = I, label 0, λ = 0.1. Cosines 0.6 and 0.8; q = σ(0.2) is the share of class 1.

    ∂cos₀/∂f = (0.128, −0.096), ∂cos₁/∂f = (−0.096, 0.072), so angles add q·(−0.224, 0.168), and λ(f − e₀)/‖f − e₀‖ is
    0.1·(2, 4)/√20. The personal head is I: its class 1 has σ(1), which adds σ(1)·(−1, 1)."""
    head, lam = head_of([[1, 0], [0, 1]], personal=[[1, 0], [0, 1]]), 0.1
    features = torch.tensor([[[3.0, 4.0]]], requires_grad=True)
    batch = Batch(features, torch.tensor([[0]]))
    loss = losses_of(said_by(head, features), batch, Guided(lam), torch.ones(1, 2))
    q, own = 1 / (1 + math.exp(-0.2)), 1 / (1 + math.exp(-1.0))
    assert loss.item() == pytest.approx(-math.log(1 - q) - math.log(1 - own) + math.sqrt(20) * lam, rel=1e-6)
    loss.sum().backward()
    pull = lam / math.sqrt(20)
    expected = torch.tensor([[[2 * pull - 0.224 * q - own, 4 * pull + 0.168 * q + own]]])
    assert_close(features.grad, expected)
    # −q(f̂ − cos₀ e₀) and q(f̂ − cos₁ e₁): magnitudes do not move the embeddings
    assert_close(head.embeddings.weight.grad, torch.tensor([[0.0, -0.8 * q], [0.6 * q, 0.0]]))
    assert_close(head.personal.weight.grad, own * torch.tensor([[-3.0, -4.0], [3.0, 4.0]]))


def test_distances_are_to_the_embeddings_with_which_the_visit_began() -> None:
    head = head_of([[1, 0], [0, 1]])
    head.anchors = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    said = said_by(head, torch.tensor([[[3.0, 4.0]]]))
    assert said.gaps is not None
    assert_close(said.gaps, torch.tensor([[[16.0, 9.0]]]))
    assert_close(said.logits, torch.tensor([[[0.6, 0.8]]]))  # by the present ones


def test_the_distance_of_samples_of_a_batch_and_squared_by_hand() -> None:
    """f = (3, 4) and (2, 2), e₀ = (1, 0): 20 and 5, so √25 for both as a batch; padding does not count in it."""
    head, labels = head_of([[1, 0], [0, 1]]), torch.tensor([[0, 0, 1]])
    features = torch.tensor([[[3.0, 4.0], [2.0, 2.0], [9.0, 9.0]]])
    batch = Batch(features, labels, torch.tensor([[1.0, 1.0, 0.0]]))
    said, counts = said_by(head, features), torch.ones(1, 2)
    plain = losses_of(said, batch, CrossEntropy(), counts)
    assert_close(losses_of(said, batch, Guided(2.0, over="batch"), counts) - plain, torch.full((1, 3), 10.0))
    each, squares = (losses_of(said, batch, Guided(2.0, over), counts) - plain for over in DISTANCES)
    assert_close(each[0, :2], 2 * torch.tensor([20.0, 5.0]).sqrt())
    assert_close(squares[0, :2], torch.tensor([40.0, 10.0]))
    assert torch.equal(losses_of(said, batch, Guided(0.0), counts), plain)


def test_head_decay_moves_the_head_alone_by_hand() -> None:
    at = DriftState({}, {"head.valve.x": torch.tensor([[4.0]]), "body.x": torch.tensor([[4.0]])})
    found = HeadDecay(0.5).gradient({"head.valve.x": torch.tensor([[1.0]]), "body.x": torch.tensor([[1.0]])}, at)
    assert {name: grad.item() for name, grad in found.items()} == {"head.valve.x": 3.0, "body.x": 1.0}


Weights = dict[str, Tensor]


def reference(start: Weights, x: Tensor, y: Tensor, mix: Tensor, lam: float, lr: float, steps: int) -> Weights:
    """One client's visit in plain torch, without stacks. `mix` has the class shares, over the number of classes."""
    made = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    fixed = start["head.embeddings.weight"]

    def through(f: Tensor, condition: Tensor) -> Tensor:
        def mapped(which: str) -> Tensor:
            inner = [made[f"head.valve.{which}.{name}"] for name in ("linear.weight", "linear.bias", "weight", "bias")]
            return F.layer_norm(F.relu(F.linear(condition, inner[0], inner[1])), (2,), inner[2], inner[3])

        return F.relu((mapped("gamma") + 1) * f + mapped("beta"))

    for _ in range(steps):
        f = x * made[BODY]
        generic, own = through(f, fixed.mean(dim=0)), through(f, mix @ fixed)
        cosines = F.cosine_similarity(generic[:, None], made["head.embeddings.weight"][None], dim=-1)
        loss = F.cross_entropy(cosines, y) + F.cross_entropy(own @ made["head.personal.weight"].T, y)
        loss = loss + lam * (generic - fixed[y]).norm(dim=1).mean()
        grads = torch.autograd.grad(loss, list(made.values()))
        made = {n: (t - lr * g).detach().requires_grad_() for (n, t), g in zip(made.items(), grads, strict=True)}
    return {name: tensor.detach() for name, tensor in made.items()}


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(("over", "classes"), [("classes", 2), ("samples", 1)])
def test_two_rounds_are_those_of_a_plain_program(
    at_once: int, over: Literal["classes", "samples"], classes: int
) -> None:
    """Body, embeddings and valve are averaged by samples, 1 : 3; heads stay. Anchors are of each visit's start."""
    lam, lr = 0.3, 0.2
    task = job(GPFL.but(objective=Guided(lam), head=Gpfl(over)), head="eye", lr=lr, local_epochs=2)
    model, personal = dict(task.model), [task.model["head.personal.weight"]] * 2
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    shards = [(one, torch.tensor([0])), (other.expand(3, 2), torch.tensor([1, 1, 1]))]
    for _ in range(2):
        left = [
            reference({**model, "head.personal.weight": own}, x, y, torch.eye(2)[k] / classes, lam, lr, 2)
            for k, ((x, y), own) in enumerate(zip(shards, personal, strict=True))
        ]
        personal = [each["head.personal.weight"] for each in left]
        model = {n: 0.25 * left[0][n] + 0.75 * left[1][n] for n in model}
    state = last(task, 2, at_once)
    for name, tensor in model.items():
        if name != "head.personal.weight":
            assert_close(state.model[name], tensor, atol=1e-5, rtol=1e-5)
    for k in (0, 1):
        assert state.clients[k].kept.keys() == {"head.personal.weight"}
        assert_close(state.clients[k].kept["head.personal.weight"], personal[k], atol=1e-5, rtol=1e-5)


def test_the_parts_can_be_named() -> None:
    net = build("scale", 2, (1, 1, 2), Gpfl(), head_init="default", head_bias=True)
    assert part_names(net, "head.embeddings") == ("head.embeddings.weight",)
    assert set(part_names(net, "head.embeddings+head.valve")) == set(part_names(net, "head"))
    assert part_names(net, "personal") == ("head.personal.weight", "head.personal.bias")
    task = job(replace(GPFL, share=replace(GPFL.share, part="body+head.embeddings")))
    assert {n for n in last(task).clients[0].kept if "valve" in n}  # a valve of each client's own


def test_a_body_of_others_says_the_same_stacked_and_alone() -> None:
    """What `apply` puts together by name: there are gaps, and no head that learns beside."""
    torch.manual_seed(0)
    net = Network(body_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 3), GpflHead(3, 2, bias=True))
    tensors = {name: torch.randn(2, *tensor.shape) for name, tensor in net.state_dict().items()}
    tensors |= net.facts(torch.tensor([[1, 3], [2, 0]]), tensors)
    x = torch.randn(2, 5, 1, 2, 2)
    both = apply(net, tensors, x)
    assert both.auxiliary_logits is None
    for k in (0, 1):
        alone = apply(net, {name: tensor[k : k + 1] for name, tensor in tensors.items()}, x[k : k + 1])
        for name in ("features", "logits", "personal", "gaps"):
            assert_close(getattr(alone, name)[0], getattr(both, name)[k])


def test_another_head_is_refused() -> None:
    with pytest.raises(RequestError, match=r"method\.objective = 'guided'.*Accepted: method\.head = 'gpfl'"):
        job(Config(method={"name": "fedavg", "objective": "guided"}).method)
