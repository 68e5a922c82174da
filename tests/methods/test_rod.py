"""Fed-RoD on the federation of tiny.py, by hand, and the invariants of spec 18, points 5 and 6."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from torso import Config, run
from torso.learn.objectives import cross_entropy
from torso.learn.phases import Phase, local_phases, with_trained_head
from torso.nets import Output, apply, build
from torso.nets.heads import Dual

from .by_hand import Data, federated, last, on
from .tiny import SIGMA, job, play

LINEAR = {"name": "fedrod-linear", "objective": {"name": "balanced-softmax", "gamma": 0.0}}


@pytest.mark.parametrize(
    ("features", "classes", "hidden", "count"), [(50, 10, 16, 8_160), (64, 10, 32, 20_800), (64, 100, 16, 104_000)]
)
def test_hypernetwork_has_the_papers_count(features: int, classes: int, hidden: int, count: int) -> None:
    head = Dual("hyper", hidden=hidden).build(features, classes, False)
    assert sum(p.numel() for p in head.get_submodule("personal").parameters()) == count


@pytest.mark.parametrize("kind", ["linear", "hyper"])
def test_the_personal_loss_reaches_the_personal_head_only(kind: str) -> None:
    net = build("mlp", 3, (1, 8, 8), Dual(kind, origin="default"))
    tensors = {n: t.detach()[None].clone().requires_grad_() for n, t in net.state_dict().items()}
    counts = torch.tensor([[3, 1, 0]])
    said: Output = apply(net, {**tensors, **net.facts(counts, tensors)}, torch.randn(1, 4, 1, 8, 8))
    assert said.personal is not None
    grads = torch.autograd.grad(
        cross_entropy(said.personal, torch.tensor([[0, 1, 0, 0]])).sum(), list(tensors.values()), allow_unused=True
    )
    reached = {name for name, grad in zip(tensors, grads, strict=True) if grad is not None and grad.abs().sum() > 0}
    assert reached == set(net.parts["personal"])


def test_one_round_of_fedrod_linear_by_hand() -> None:
    """γ = 0: the generic branch is FedAvg's. The personal head starts at 0 with logits 0: the same first step."""
    state, fedavg = play(job(LINEAR)), play(job("fedavg"))
    assert torch.equal(state.model["head.generic.weight"], fedavg.model["head.weight"])
    own = state.clients[0].kept["head.personal.weight"]
    assert_close(own, torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
    assert set(state.clients[0].kept) == {"head.personal.weight"}
    assert torch.equal(state.model["head.personal.weight"], torch.zeros(2, 2))  # it never leaves the client


def test_personal_logits_are_added_to_the_generic_ones() -> None:
    """Two local epochs: generic column (½, −½) after one, so its gap is 1; the personal one is the same: gap 2 in all.

    Personal second step: p₁ = 1/(1 + e²) at the sum, so the personal column becomes ½ + p₁."""
    state = play(job(LINEAR, local_epochs=2))
    p1 = 1 / (1 + torch.exp(torch.tensor(2.0)))
    assert_close(state.clients[0].kept["head.personal.weight"][0, 0], 0.5 + p1)
    assert_close(state.model["head.generic.weight"][0, 0], torch.tensor(0.25 * (0.5 + SIGMA)))


def test_balanced_softmax_sees_the_clients_own_counts() -> None:
    """Each tiny client has one class: the others leave the soft-max, its loss is 0 and the generic branch stays."""
    state = play(job("fedrod-linear"))
    assert torch.equal(state.model["head.generic.weight"], torch.zeros(2, 2))
    assert_close(state.clients[0].kept["head.personal.weight"][0, 0], torch.tensor(0.5))


# What the paper leaves unsaid, each as a switch


def _with(**head: object) -> dict[str, object]:
    return {**LINEAR, "head": {"name": "dual", **head}}


def test_a_personal_loss_that_goes_through_trains_body_and_generic_head() -> None:
    """W = I, φ = 0: both losses are the same, so body and generic head move twice as far. One step of client 0 takes s₀
    to 1 + σ by one loss, of client 1 s₁; the server weighs them ¼ and ¾."""
    usual, through = (play(job(_with(through=said), head="eye")) for said in (False, True))
    for state, times in ((usual, 1), (through, 2)):
        assert_close(state.model["body.blocks.0.weight"], 1 + times * SIGMA * torch.tensor([0.25, 0.75]))
        moved = state.model["head.generic.weight"] - torch.eye(2)
        assert_close(moved, times * SIGMA * torch.tensor([[0.25, -0.75], [-0.25, 0.75]]))
        assert_close(state.clients[0].kept["head.personal.weight"], SIGMA * torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))


def test_log_proportions_are_added_to_personal_logits() -> None:
    """Client 1 has three samples of class 1, and a class that it lacks counts as one: log ⅓ and 0, so p = (¼, ¾) and
    the head moves by ¼. Client 0 has one sample: 0 and 0, as without."""
    state = play(job(_with(prior=True)))
    assert_close(state.clients[1].kept["head.personal.weight"], torch.tensor([[0.0, -0.25], [0.0, 0.25]]))
    assert_close(state.clients[0].kept["head.personal.weight"], torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
    assert_close(state.model["head.generic.weight"], 0.5 * torch.tensor([[0.25, -0.75], [-0.25, 0.75]]))


@pytest.mark.parametrize("kind", ["linear", "hyper"])
def test_a_network_that_adds_log_proportions_says_so_alone_and_in_a_stack(kind: str) -> None:
    head = Dual(kind, origin="normal", prior=True, hidden=4)
    net = build("mlp", 3, (1, 8, 8), head)
    counts, x = torch.tensor([[3, 1, 0], [2, 2, 4]]), torch.randn(2, 4, 1, 8, 8)
    tensors = {n: t.detach()[None].repeat(2, *[1] * t.ndim) for n, t in net.state_dict().items()}
    facts = net.facts(counts, tensors)
    assert_close(facts["head.prior"], torch.tensor([[3 / 4, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2]]).log())
    said: Output = apply(net, {**tensors, **facts}, x)
    assert said.personal is not None
    plain = build("mlp", 3, (1, 8, 8), Dual(kind, origin="normal", hidden=4))
    without = apply(plain, {**tensors, **{n: t for n, t in facts.items() if n != "head.prior"}}, x).personal
    assert without is not None
    assert_close(said.personal, without + facts["head.prior"][:, None])
    for client in (0, 1):
        net.fill({n: t[client] for n, t in {**tensors, **facts}.items()}, personal=True)
        assert_close(net(x[client]), said.personal[client])


@pytest.mark.parametrize("kind", ["linear", "hyper"])
def test_company_in_a_stack_changes_nothing_for_these_switches(kind: str) -> None:
    """Clients of two sizes; the personal loss reaches everything, and shares are added."""
    clients = [Data.of([(1, 0), (1, 0.2), (0.8, 0), (1, 0.6)], [0, 0, 1, 1]), Data.of([(0, 1), (0.4, 1)], [1, 1])]
    head = {"name": "dual", "personal": kind, "through": True, "prior": True, "origin": "normal"}
    task = on(job({"name": f"fedrod-{kind}", "head": head}, head="eye"), federated(clients))
    alone, together = last(task, 2), last(task, 2, at_once=2)
    for name in alone.model:
        assert_close(alone.model[name], together.model[name])
        assert torch.isfinite(alone.model[name]).all()


@pytest.mark.parametrize(
    ("kind", "fans"), [("linear", {"weight": 64}), ("hyper", {"first.weight": 50, "second.weight": 32})]
)
def test_a_personal_head_starts_at_he_normal(kind: str, fans: dict[str, int]) -> None:
    """N(0, 2/d): the standard deviation of thousands of numbers is within 5 % of √(2/d); none is alike at two seeds."""
    heads = [
        build("rod-cifar", 50, (3, 32, 32), Dual(kind, origin="normal", hidden=32), seed=seed).head for seed in (0, 1)
    ]
    for name, fan in fans.items():
        one, other = (head.get_parameter(f"personal.{name}") for head in heads)
        assert abs(float(one.detach().std()) / (2 / fan) ** 0.5 - 1) < 0.05
        assert not torch.equal(one, other)


def test_hyper_head_is_made_from_class_proportions() -> None:
    """φ = V₂ relu(V₁ a): with a = (1, 0) the first column of V₁ counts."""
    head = Dual("hyper", hidden=2).build(2, 2, False)
    with torch.no_grad():
        head.get_parameter("personal.first.weight").copy_(torch.tensor([[1.0, 5.0], [-1.0, 5.0]]))
        head.get_parameter("personal.second.weight").copy_(torch.arange(8.0).view(4, 2))
        head.get_buffer("personal.mix").copy_(torch.tensor([1.0, 0.0]))
    made = head.get_submodule("personal")(torch.eye(2))  # relu(V₁a) = (1, 0): V₂'s first column 0, 2, 4, 6 as 2 × 2
    assert made.tolist() == [[0.0, 4.0], [2.0, 6.0]]


def test_the_hypernetwork_travels_and_is_averaged_whatever_the_server_rule() -> None:
    plain = play(job("fedrod-hyper", head="eye"))
    assert not plain.clients.of_kind("kept")
    ruled = play(job({"name": "fedrod-hyper", "server": {"name": "momentum", "lr": 7.0}}, head="eye"))
    for name in plain.model:
        if name.startswith("head.personal."):
            assert torch.equal(plain.model[name], ruled.model[name])
    parameters = sum(t.numel() for t in plain.model.values())
    assert plain.cost.bytes_up == 2 * 4 * parameters


def test_a_newcomers_plan_can_name_a_recording() -> None:
    """On an accelerator, recorded steps are kept under a key that has the tensors of the plan."""
    net = job("fedrod-hyper").net
    (phase,) = with_trained_head(local_phases(net, (Phase("all"),), 1, 0.1), net)
    assert hash(phase.moving)
    assert phase.moving == {*(name for name, _ in net.named_parameters() if "personal" not in name), net.generated_head}


def test_scaffold_on_the_generic_branch_only() -> None:
    state = play(job("fedrod-hyper-scaffold", head="eye"))
    assert set(state.clients[0].memory) == {"body.blocks.0.weight", "head.generic.weight"}
    plain = play(job("fedrod-hyper", head="eye")).cost.bytes_up
    assert state.cost.bytes_up - plain == 2 * 4 * (2 + 4)  # the control variates of body and generic head


@pytest.mark.parametrize("method", ["fedrod-linear", "fedrod-hyper", "fedrod-hyper-feddyn"])
@pytest.mark.parametrize("at_once", [1, 4])
def test_personal_logits_beat_the_generic_ones_on_the_clients_own_data(method: str, at_once: int) -> None:
    result = run(
        Config(
            method=method,
            data={"clients": 10, "shards": 2},
            train={"rounds": 8, "fraction": 0.5, "batch_size": 10, "lr": 0.05},
            measure={"names": ["initial", "generic"]},
            run={"clients_at_once": at_once, "workers": 1},
        )
    )
    assert result.accuracy["initial"].mean > result.accuracy["generic"].mean + 5
