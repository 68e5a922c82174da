"""Models that the server mixes for each client (FedAMP, spec 19.21): by hand, its weights, its bytes, its limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from torso import Config
from torso.engine import OneByOne
from torso.errors import RequestError
from torso.personal.state import State
from torso.runs.rounds import play_round
from torso.server.attention import Attention
from torso.server.statistics import ServerView

from .by_hand import EYE, FIRST, SECOND, Data, equal, federated, last, on, same, sgd, story
from .tiny import job

DATA = (FIRST, SECOND)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_visit_begins_at_the_mix_and_is_held_near_it(at_once: int) -> None:
    """ξ = (α/σ)·exp(−‖w₀ − w₁‖²/σ), α = 0.6, σ = 2; u₀ = w₀ + ξ(w₁ − w₀). Two steps of loss + (μ/2)‖w − u‖², so that
    the second one is pulled. In the first round all models are the same."""
    method = {"name": "fedamp", "statistics": {"alpha": 0.6, "sigma": 2.0}, "drift": {"mu": 0.5}}
    task = job(method, head="eye", local_epochs=2, lr=0.3)
    models = [EYE, EYE]
    for state, _ in story(task, 3, at_once):
        weight = 0.6 / 2 * math.exp(-models[0].minus(models[1]).squared() / 2)
        starts = [models[k].moved(models[1 - k].minus(models[k]), weight) for k in (0, 1)]
        models = [sgd(starts[k], DATA[k], 0.3, steps=2, target=starts[k], pull=0.5) for k in (0, 1)]
        for k in (0, 1):
            same(state.clients[k].kept, models[k], tol=1e-5)
        assert equal(state.model, task.model)  # nothing is averaged


def test_who_is_near_counts_more_and_oneself_not() -> None:
    """By hand: distances² 0 (itself), 1 and 4; σ = 2, α = 1: ½e^(−½) and ½e^(−2)."""
    squares, apart = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([0.0, 1.0, 1.0])
    found = Attention(alpha=1.0, sigma=2.0).attention(squares, apart)
    assert_close(found, torch.tensor([0.0, 0.5 * math.exp(-0.5), 0.5 * math.exp(-2)]))


def test_automatic_weights_do_not_depend_on_the_scale() -> None:
    """σ is the mean of 1 and 4, and α/σ one half: ½e^(−0.4) and ½e^(−1.6)."""
    apart = torch.tensor([0.0, 1.0, 1.0])
    found = Attention().attention(torch.tensor([0.0, 1.0, 4.0]), apart)
    assert_close(found, torch.tensor([0.0, 0.5 * math.exp(-0.4), 0.5 * math.exp(-1.6)]))
    assert_close(Attention().attention(torch.tensor([0.0, 1e6, 4e6]), apart), found)


def test_weights_sum_to_one_at_most() -> None:
    """α/σ = 5: weights of others would sum to 10, and the client's own to −9."""
    found = Attention(alpha=5.0, sigma=1.0).attention(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 1.0]))
    assert_close(found, torch.tensor([0.0, 0.5, 0.5]))
    assert Attention().attention(torch.zeros(1), torch.zeros(1)).tolist() == [0.0]  # nobody else
    assert torch.isfinite(Attention().attention(torch.zeros(2), torch.ones(2))).all()  # all alike: distance 0


def test_distances_are_of_parameters_and_statistics_are_mixed_with_them() -> None:
    """‖w₀ − w₁‖² = 4 whatever the running mean says; σ = 4, α = 4: e^(−1) of the way, of both. Counters stay."""
    uploads = {
        0: {"w": torch.tensor([0.0]), "mean": torch.tensor([100.0]), "count": torch.tensor(3)},
        1: {"w": torch.tensor([2.0]), "mean": torch.tensor([0.0]), "count": torch.tensor(7)},
    }
    found = Attention(alpha=4.0, sigma=4.0).to_one(ServerView(uploads=uploads, parameters=("w",)), 0)
    assert found.keys() == {"w", "mean"}
    assert_close(found["w"], torch.tensor([2 * math.exp(-1)]))
    assert_close(found["mean"], torch.tensor([100 * (1 - math.exp(-1))]))


def test_a_client_that_never_came_attends_from_the_first_model() -> None:
    """It is at 0, the only upload at 2: ‖·‖² = 4, σ = 4, α = 4, so e^(−1) of the way."""
    held = ServerView(model={"w": torch.tensor([0.0])}, uploads={1: {"w": torch.tensor([2.0])}}, parameters=("w",))
    found = Attention(alpha=4.0, sigma=4.0).to_one(held, 0)
    assert_close(found["w"], torch.tensor([2 * math.exp(-1)]))


def test_without_attention_clients_train_alone() -> None:
    """With a tiny σ nobody is near, and μ = 0: what is left is local-only, when everybody comes in every round."""
    settings: dict[str, Any] = {"head": "eye", "local_epochs": 2, "lr": 0.3}
    found = last(job({"name": "fedamp", "statistics": {"sigma": 1e-30}, "drift": {"mu": 0.0}}, **settings), 3)
    alone = last(job("local-only", **settings), 3)
    assert all(equal(found.clients[k].kept, alone.clients[k].kept) for k in (0, 1))


def test_absent_clients_are_mixed_in_with_their_last_upload_and_one_who_never_came_has_the_first_model() -> None:
    data = [FIRST, SECOND, Data.of([(1, 0.2)], [1])]
    task = on(job("fedamp", head="eye", lr=0.3, fraction=0.34), federated(data))
    state = State.begin(task.model)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        for _ in range(4):
            before = state
            state, played = play_round(task.plan[0], state, task.roster, engine, seed=0)
            (client,) = played.participants
            others = [k for k in before.server.uploads if k != client]
            if others and client not in before.server.uploads:
                started = Attention().to_one(
                    ServerView(model=before.model, uploads=before.server.uploads, parameters=task.plan[0].corrected),
                    client,
                )
                assert not equal(started, {n: before.model[n] for n in started})
    assert len(state.server.uploads) > 1


def test_a_server_that_keeps_no_uploads_is_refused() -> None:
    with pytest.raises(RequestError, match=r"method\.statistics = 'attention' mixes .* 'mean' keeps none.*'apart'"):
        job(Config(method={"name": "fedavg", "statistics": "attention"}).method)
