"""Every method on the federation of tiny.py, against numbers worked out by hand (σ = 0.26894, see there)."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from torso.personal.models import generic_model
from torso.runs.sampling import weights_of

from .tiny import SIGMA, body, federation, head, job, play

W0 = torch.tensor([[0.5, 0.0], [-0.5, 0.0]])  # client 0 after a step of rate 1 from W = 0: p = (½, ½), −(p − e)xᵀ
W1 = torch.tensor([[0.0, -0.5], [0.0, 0.5]])


def test_fedavg_weights_clients_by_samples() -> None:
    assert_close(head(play(job("fedavg"))), 0.25 * W0 + 0.75 * W1)


def test_fedavg_with_uniform_weights() -> None:
    assert_close(head(play(job("fedavg", weighting="uniform"))), 0.5 * W0 + 0.5 * W1)


def test_fedavg_moves_body_and_head_from_the_same_gradient() -> None:
    """From W = I: p − e = (−σ, σ) for client 0, so s₀ grows by σ and W's first column by (σ, −σ)."""
    state = play(job("fedavg", head="eye"))
    assert_close(body(state), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))
    column0, column1 = torch.tensor([SIGMA, -SIGMA]), torch.tensor([-SIGMA, SIGMA])
    assert_close(head(state), torch.eye(2) + torch.stack([0.25 * column0, 0.75 * column1], dim=1))


def test_fedbabu_moves_the_body_and_returns_the_head_bit_for_bit() -> None:
    task = job("fedbabu", head="eye")
    state = play(task, rounds=3)
    assert torch.equal(head(state), torch.eye(2))
    assert_close(body(play(task)), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))


def test_fedprox_pulls_back_towards_the_received_model() -> None:
    """Second local step: gap of logits 1, gradient −σ + μ·½ on the first column's upper entry."""
    mu = 0.1
    state = play(job({"name": "fedprox", "drift": {"mu": mu}}, local_epochs=2))
    moved = 0.5 + SIGMA - mu * 0.5
    # the three equal samples of client 1 are one batch, so its steps are as large as client 0's
    expected = 0.25 * torch.tensor([[moved, 0], [-moved, 0]]) + 0.75 * torch.tensor([[0, -moved], [0, moved]])
    assert_close(head(state)[:, 0], expected[:, 0])
    # s learns too from the second step on (W ≠ 0): −xᵀWᵀ(p − e) = σ, and proximal adds nothing as s has not moved yet
    assert_close(body(state), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))


def test_fedprox_babu_pulls_the_body_only() -> None:
    """Body: s₀ = 1 + σ after one step; second step at gap 1 + σ, gradient −p₁ + μσ."""
    mu = 0.5
    state = play(job({"name": "fedprox-babu", "drift": {"mu": mu}}, head="eye", local_epochs=2, weighting="uniform"))
    p1 = 1 / (1 + torch.exp(torch.tensor(1 + SIGMA)))
    step = SIGMA + p1 - mu * SIGMA
    assert_close(body(state), torch.stack([1 + step / 2, 1 + step / 2]))
    assert torch.equal(head(state), torch.eye(2))


def test_fedper_keeps_heads_and_averages_bodies() -> None:
    task = job("fedper")
    state = play(task)
    assert_close(state.clients[0].kept["head.weight"], W0)
    assert_close(state.clients[1].kept["head.weight"], W1)
    assert torch.equal(head(state), torch.zeros(2, 2))  # the server never sees a head
    generic = generic_model(state.model, state.clients, task.roster)
    assert_close(generic["head.weight"], 0.25 * W0 + 0.75 * W1)  # sample-weighted mean of the final heads (4.2)
    again = play(task, rounds=2)  # second round: W0 at gap 1 → column grows by σ, s by σ
    assert_close(again.clients[0].kept["head.weight"], torch.tensor([[0.5 + SIGMA, 0], [-0.5 - SIGMA, 0]]))
    assert_close(body(again), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))


def test_fedper_reset_throws_the_head_away() -> None:
    state = play(job("fedper-reset"), rounds=3)
    assert not state.clients.of_kind("kept")
    assert torch.equal(head(state), torch.zeros(2, 2))
    assert torch.equal(body(state), torch.ones(2))  # with W = 0 at the start of every visit the body has no gradient


def test_fedrep_trains_the_head_first_then_the_body_for_one_epoch() -> None:
    """Head: W0 as above. Body, at the new head: gap 1, −∂ℓ/∂s₀ = ½σ + ½σ."""
    state = play(job("fedrep"))
    assert_close(state.clients[0].kept["head.weight"], W0)
    assert_close(body(state), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))


def test_fedrep_body_learns_one_epoch_whatever_the_heads() -> None:
    """Two head epochs: column ½ + σ, gap g = 1 + 2σ; the body then takes one step of (½ + σ)·2·p₁."""
    state = play(job("fedrep", local_epochs=2))
    w = 0.5 + SIGMA
    p1 = 1 / (1 + torch.exp(torch.tensor(2 * w)))
    assert_close(body(state), torch.stack([1 + 0.25 * 2 * w * p1, 1 + 0.75 * 2 * w * p1]))


def test_fedrep_shared_momentum_gathers_speed_while_waiting() -> None:
    """One optimiser over both phases (FedBABU's code): in the head's phase the body's velocity gathers ∂ℓ/∂s.

    From W = I with μ = ½: head phase leaves v_s = −σ for s₀ (not applied) and W₀₀ = 1 + σ, W₁₀ = −σ; body phase at gap
    1 + 2σ has gradient −(1 + 2σ)p₁, so v_s = −σ/2 − (1 + 2σ)p₁."""
    together = play(job({"name": "fedrep", "shared_momentum": True}, head="eye", momentum=0.5, weighting="uniform"))
    gap = torch.tensor(1 + 2 * SIGMA)
    p1 = 1 / (1 + torch.exp(gap))
    assert_close(body(together)[0], 1 + 0.5 * (SIGMA / 2 + gap * p1))
    apart = play(job("fedrep", head="eye", momentum=0.5, weighting="uniform"))
    assert_close(body(apart)[0], 1 + 0.5 * gap * p1)


def test_lg_fedavg_shares_the_head_and_keeps_bodies_after_a_fedavg_stage() -> None:
    """rounds = 4 → one further round at lr 0.001: bodies stay with their clients, heads are averaged."""
    task = job("lg-fedavg", head="eye")
    assert [stage.method.name for stage in task.plan] == ["fedavg", "lg-fedavg"]
    assert (task.plan[1].rounds, task.plan[1].rate(5)) == (1, 0.001)
    before = play(task, rounds=4)
    after = play(task, rounds=5)
    assert torch.equal(body(after), body(before))
    s, w = body(before), head(before)
    errors = [torch.softmax(w @ (s * x), 0) - x for x in torch.eye(2)]  # p − e; the label of pixel k is k
    for client, (x, error) in enumerate(zip(torch.eye(2), errors, strict=True)):
        assert_close(after.clients[client].kept["body.blocks.0.weight"], s - 0.001 * x * (w.T @ error))
    moves = [torch.outer(error, s * x) for x, error in zip(torch.eye(2), errors, strict=True)]
    assert_close(head(after), w - 0.001 * (0.25 * moves[0] + 0.75 * moves[1]))


def test_local_only_shares_nothing_and_everybody_trains() -> None:
    task = job("local-only", fraction=0.5)
    state = play(task)
    assert torch.equal(head(state), torch.zeros(2, 2))
    assert_close(state.clients[0].kept["head.weight"], W0)
    assert_close(state.clients[1].kept["head.weight"], W1)
    assert (state.cost.bytes_up, state.cost.bytes_down) == (0, 0)


@pytest.mark.parametrize(("method", "moves_head"), [("fedavg-data-sharing", True), ("fedavg-data-sharing-body", False)])
def test_server_data_are_one_more_epoch_after_the_mean(method: str, moves_head: bool) -> None:
    """The server holds sample 0. After the mean, W = ¼W0 + ¾W1: for x = (1, 0) logits (⅛, −⅛), p₁ = 1/(1 + e^¼)."""
    state = play(job(method, server_rows=(0,)))
    mean = 0.25 * W0 + 0.75 * W1
    p1 = 1 / (1 + torch.exp(torch.tensor(0.25)))
    assert_close(body(state), torch.stack([1 + 0.25 * p1, torch.tensor(1.0)]))
    step = torch.stack([torch.stack([p1, -p1]), torch.zeros(2)], dim=1)
    assert_close(head(state), mean + step if moves_head else mean)


def test_fedbabu_data_sharing_leaves_the_head() -> None:
    assert torch.equal(head(play(job("fedbabu-data-sharing", head="eye", server_rows=(0, 1)))), torch.eye(2))


def test_partial_update_moves_the_first_blocks_only() -> None:
    state = play(job({"name": "partial-update", "train": "blocks:1"}, head="eye"))
    assert torch.equal(head(state), torch.eye(2))
    assert_close(body(state), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))


def test_head_learning_rate_is_a_factor_on_the_bodys() -> None:
    state = play(job("fedavg", head="eye", head_lr_factor=0.1, lr=0.5, weighting="uniform"))
    assert_close(body(state), torch.full((2,), 1 + 0.25 * SIGMA))
    assert_close(head(state)[:, 0], torch.tensor([1 + 0.025 * SIGMA, -0.025 * SIGMA]))


def test_weights_sum_to_one() -> None:
    assert weights_of(federation().roster, (0, 1), "samples") == {0: 0.25, 1: 0.75}
    assert weights_of(federation().roster, (0, 1), "uniform") == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(("method", "passes"), [("fedavg", 3), ("fedbabu", 3), ("lp", 1), ("fedrep", 2 * 1 + 3)])
def test_forward_passes_of_a_sample(method: str, passes: int) -> None:
    """1 + 3 samples; two epochs, of FedRep two of the head and one of the body. A backward pass through the body counts
    two forward ones, and tuning the head needs none (spec 14.2)."""
    epochs = 1 if method == "fedrep" else 2
    assert play(job(method, head="eye", local_epochs=2)).cost.forward_passes == 4 * epochs * passes
