"""Steps that are no plain SGD, on the federation of tiny.py: Per-FedAvg (spec 5.2) and pFedMe (spec 5.4)."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from torso.data.batches import Shuffle
from torso.engine import Workspace
from torso.errors import RequestError
from torso.learn.steps import Envelope, LookAhead
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation

from .by_hand import (
    BODY,
    EYE,
    FIRST,
    HEAD,
    SECOND,
    ZEROS,
    Data,
    Model,
    federated,
    gradient,
    last,
    mean,
    on,
    read,
    same,
    sgd,
    story,
)
from .tiny import SIGMA, body, head, job, play

MIXED = Data.of([(0, 1), (1, 0.2), (0.2, 1), (1, 1)], [1, 0, 1, 0])  # a client whose samples differ


def look_ahead(w: Model, first: Data, second: Data, alpha: float, beta: float) -> Model:
    """w − β∇ℓ(w − α∇ℓ(w; B₁); B₂)."""
    return w.moved(gradient(w.moved(gradient(w, first), -alpha), second), -beta)


def part(data: Data, rows: tuple[int, ...]) -> Data:
    return Data(data.x[list(rows)], data.y[list(rows)])


def met(task: Simulation, client: int, epoch: int = 0, round: int = 1) -> list[Data]:
    """The batches of a client's epoch: the samples are those of MIXED, told apart by their pixels."""
    workspace = Workspace.at(task.net, task.federation)
    batches = workspace.train_deck([client]).shuffled(
        task.config.train.batch_size, workspace.context.lens, Shuffle(0, "train", round), epoch, None
    )
    return [Data(b.inputs[0].flatten(1).double().numpy(), b.labels[0].numpy()) for b in batches]


def test_per_fedavg_with_one_batch_uses_it_twice() -> None:
    """From W = 0: ahead W̃ = (½, −½) in the client's column, s̃ = s. There p − e = (−σ, σ), so W's column becomes
    (σ, −σ) and s₀ grows by ½σ + ½σ. FedAvg's step would have been ½, and no move of s."""
    state = play(job("per-fedavg"))
    column = torch.tensor([SIGMA, -SIGMA])
    torch.testing.assert_close(head(state), torch.stack([0.25 * column, -0.75 * column], dim=1))
    torch.testing.assert_close(body(state), torch.tensor([1 + 0.25 * SIGMA, 1 + 0.75 * SIGMA]))


def test_per_fedavg_looks_ahead_on_one_batch_and_learns_from_the_next() -> None:
    """Two batches of two samples: one step. Whichever samples come first, it is one of the six ways to part them."""
    task = on(job("per-fedavg", head="eye", batch_size=2, lr=0.5), federated([MIXED, SECOND]))
    state = last(task)
    other = look_ahead(EYE, SECOND, SECOND, 0.5, 0.5)
    found = read(state.model)
    ways = [
        mean([look_ahead(EYE, part(MIXED, rows[:2]), part(MIXED, rows[2:]), 0.5, 0.5), other], [0.8, 0.2])
        for rows in permutations(range(4))
    ]
    assert min(found.minus(way).squared() for way in ways) < 1e-11
    one, two = met(task, 0)
    same(state.model, mean([look_ahead(EYE, one, two, 0.5, 0.5), other], [0.8, 0.2]))
    twice = [look_ahead(EYE, batch, batch, 0.5, 0.5) for batch in (one, two)]
    assert min(found.minus(mean([way, other], [0.8, 0.2])).squared() for way in twice) > 1e-4


def test_per_fedavg_outer_rate_is_an_option_and_the_inner_rate_stays_the_rounds() -> None:
    state = play(job({"name": "per-fedavg", "step": {"beta": 0.1}}, head="eye", lr=0.5))
    same(state.model, mean([look_ahead(EYE, data, data, 0.5, 0.1) for data in (FIRST, SECOND)], [0.25, 0.75]))


def test_per_fedavg_has_no_momentum_unless_asked() -> None:
    """Two epochs at μ = 0.9. Without momentum two plain steps; with it the second is 0.9 v₁ + g₂."""
    plain = play(job("per-fedavg", head="eye", local_epochs=2))
    usual = play(job("per-fedavg", head="eye", local_epochs=2, momentum=0.9))
    assert all(torch.equal(plain.model[n], usual.model[n]) for n in (BODY, HEAD))

    def fast(data: Data) -> Model:
        first = EYE.minus(look_ahead(EYE, data, data, 1.0, 1.0))
        w = EYE.moved(first, -1.0)
        second = w.minus(look_ahead(w, data, data, 1.0, 1.0)).moved(first, 0.9)
        return w.moved(second, -1.0)

    asked = play(job({"name": "per-fedavg", "step": {"with_momentum": True}}, head="eye", local_epochs=2, momentum=0.9))
    same(asked.model, mean([fast(FIRST), fast(SECOND)], [0.25, 0.75]))


def test_per_fedavg_counts_a_step_for_every_pair_and_one_for_a_single_batch() -> None:
    """⌊batches / 2⌋, at least one where there is a batch: what control variates are divided by (spec 3.7, 5.2)."""
    assert [LookAhead().steps(batches) for batches in (0, 1, 2, 3, 5)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("size", [50, 2, 1])
def test_per_fedavg_leaves_an_odd_batch_over(size: int) -> None:
    """Client 1's three equal samples are 1, 2 or 3 batches: one pair each time, the third batch is left over."""
    state = play(job("per-fedavg", head="eye", batch_size=size))
    same(state.model, mean([look_ahead(EYE, data, data, 1.0, 1.0) for data in (FIRST, SECOND)], [0.25, 0.75]))


def test_per_fedavg_makes_a_step_of_every_pair() -> None:
    """Four batches of one sample: two steps an epoch, and over two epochs four."""
    task = on(job("per-fedavg", head="eye", batch_size=1, lr=0.5, local_epochs=2), federated([MIXED, SECOND]))
    w, other = EYE, EYE
    for epoch in range(2):
        one, two, three, four = met(task, 0, epoch)
        w = look_ahead(look_ahead(w, one, two, 0.5, 0.5), three, four, 0.5, 0.5)
        other = look_ahead(other, SECOND, SECOND, 0.5, 0.5)
    same(last(task).model, mean([w, other], [0.8, 0.2]))


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize("sizes", [(1, 3), (4, 1), (3, 4), (2, 4)])
def test_per_fedavg_in_a_stack_of_clients_with_different_numbers_of_batches(size: int, sizes: tuple[int, int]) -> None:
    """A client with a single batch uses it twice, one with an odd number leaves one over, whatever its company does."""
    clients = [part(MIXED, tuple(range(count))) for count in sizes]
    task = on(job("per-fedavg", head="eye", batch_size=size, local_epochs=2), federated(clients))
    alone, together = last(task, rounds=2), last(task, rounds=2, at_once=2)
    for name in (BODY, HEAD):
        torch.testing.assert_close(alone.model[name], together.model[name])


ENVELOPE: dict[str, Any] = {"lam": 2.0, "inner_steps": 3, "inner_lr": 0.3, "lr": 0.1}


def envelope(w: Model, batches: list[Data]) -> tuple[Model, Model]:
    """(w, θ) after a visit: on each batch K steps θ ← θ − α(∇ℓ(θ) + λ(θ − w)), then w ← w − ηλ(w − θ)."""
    theta = w
    for batch in batches:
        for _ in range(ENVELOPE["inner_steps"]):
            grad = gradient(theta, batch).moved(theta.minus(w), ENVELOPE["lam"])
            theta = theta.moved(grad, -ENVELOPE["inner_lr"])
        w = w.moved(w.minus(theta), -ENVELOPE["lr"] * ENVELOPE["lam"])
    return w, theta


def pfedme(**axes: Any) -> dict[str, Any]:
    return {"name": "pfedme", "step": ENVELOPE, **axes}


def test_pfedme_one_inner_step_by_hand() -> None:
    """K = 1, α = 1 from W = 0: θ = (½, −½) in the column (θ = w, so λ pulls nothing yet), then w moves by ηλ·½ = 0.1.

    The round's rate plays no part."""
    step = {"lam": 2.0, "inner_steps": 1, "inner_lr": 1.0, "lr": 0.1}
    state = play(job({"name": "pfedme", "step": step}, lr=123.0))
    column = torch.tensor([0.5, -0.5])
    torch.testing.assert_close(head(state), 0.2 * torch.stack([0.25 * column, -0.75 * column], dim=1))
    torch.testing.assert_close(state.clients[0].own[HEAD], torch.stack([column, torch.zeros(2)], dim=1))
    assert torch.equal(body(state), torch.ones(2))


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("epochs", [1, 2])
def test_pfedme_goes_on_with_theta_from_batch_to_batch(at_once: int, epochs: int) -> None:
    """Batches of one: client 1 has three an epoch, and its θ of the first is where the second begins, and so from
    epoch to epoch. Two rounds: θ begins anew at the received w (spec 5.4)."""
    task = job(pfedme(), head="eye", batch_size=1, local_epochs=epochs)
    told = story(task, 2, at_once)
    w = EYE
    for state, _ in told:
        (w0, theta0), (w1, theta1) = envelope(w, [FIRST] * epochs), envelope(w, [SECOND] * 3 * epochs)
        w = mean([w0, w1], [0.25, 0.75])
        same(state.model, w)
        same(state.clients[0].own, theta0)
        same(state.clients[1].own, theta1)


def test_pfedme_has_no_momentum() -> None:
    plain, usual = (play(job(pfedme(), head="eye", batch_size=1, momentum=m)) for m in (0.0, 0.9))
    assert torch.equal(head(plain), head(usual))
    assert torch.equal(plain.clients[1].own[HEAD], usual.clients[1].own[HEAD])


def test_pfedme_weight_decay_acts_on_theta_and_not_on_w() -> None:
    """By hand: λ = 2, K = 2, α = 0.5, η = 0.1, decay ½, from s = (1, 1) and W = 0; one client, x = (1, 0) of class 0.

    First step, θ = w: with W = 0 the body has gradient 0 and decay gives s = 1 − 0.5·0.5·1 = 0.75; the head's column
    has gradient (−½, ½) and no decay yet: (0.25, −0.25). Second step: the logits are 0.75·(0.25, −0.25), so that
    q = 1 − p₀ = 1 / (1 + e^0.375). The column: g = −0.75q, decay 0.125, pull 2·0.25: 0.25 − 0.5·(0.625 − 0.75q).
    s₀: g = (W₁₀ − W₀₀)q = −0.5q, decay 0.375, pull −0.5: 0.75 − 0.5·(−0.125 − 0.5q); s₁: no gradient, 0.8125.
    Then w moves by ηλ = 0.2 of the way to θ, and by nothing else."""
    step = {"lam": 2.0, "inner_steps": 2, "inner_lr": 0.5, "lr": 0.1}
    task = job({"name": "pfedme", "step": step}, weight_decay=0.5)
    state = play(on(task, federated([FIRST])))
    q = 1 / (1 + math.exp(0.375))
    column, scale = 0.25 - 0.5 * (0.625 - 0.75 * q), 0.75 + 0.5 * (0.125 + 0.5 * q)
    theta = Model(np.array([scale, 0.8125]), np.array([[column, 0.0], [-column, 0.0]]))
    same(state.clients[0].own, theta)
    same(state.model, ZEROS.moved(theta.minus(ZEROS), 0.2))


def test_pfedme_server_mixes_by_beta() -> None:
    """w ← (1 − β)w + β Σ(n_k/n)w_k is the server's momentum rule with lr = β and no past."""
    server = {"name": "momentum", "lr": 0.5, "beta": 0.0}
    told = story(job(pfedme(server=server), head="eye"), 2)
    w = EYE
    for state, _ in told:
        came = mean([envelope(w, [data])[0] for data in (FIRST, SECOND)], [0.25, 0.75])
        w = mean([w, came], [0.5, 0.5])
        same(state.model, w)


def own_models(task: Simulation, state: State) -> tuple[Model, Model]:
    """What evaluation begins with, for both clients."""
    workspace = Workspace.at(task.net, task.federation).holding(state.clients)
    held = workspace.models(state.model, (0, 1))
    begun = evaluation_of(task, task.stage(state.round), state).own(workspace, (0, 1), held)
    first, second = ({name: tensor[k] for name, tensor in begun.items()} for k in (0, 1))
    return read(first), read(second)


def close(one: Model, other: Model) -> None:
    assert one.minus(other).squared() < 1e-10


def test_pfedme_own_model_is_theta_of_the_last_visit_or_the_servers() -> None:
    """One participant a round. While the other has never come it is measured with the server's w."""
    task = job(pfedme(), head="eye", fraction=0.5)
    (one, played), *_ = told = story(task, 4)
    came = played.participants[0]
    theta = envelope(EYE, [(FIRST, SECOND)[came]])[1]
    own = own_models(task, one)
    close(own[came], theta)
    close(own[1 - came], read(one.model))
    before, latest = read(task.model), {}
    for state, round in told:
        (k,) = round.participants
        latest[k] = envelope(before, [(FIRST, SECOND)[k]])[1]
        before = read(state.model)
        for client, expected in latest.items():
            close(own_models(task, state)[client], expected)
    assert set(latest) == {0, 1}


@pytest.mark.parametrize(("lr", "lam"), [(0.1, 10.0), (0.5, 15.0)])
def test_pfedme_refuses_to_overshoot(lr: float, lam: float) -> None:
    with pytest.raises(RequestError, match="product must be below 1"):
        Envelope(lam=lam, lr=lr)
    with pytest.raises(RequestError, match=r"method\.step\.lr"):
        job({"name": "pfedme", "step": {"lr": lr, "lam": lam}})


def test_centralised_is_sgd_over_the_servers_rows() -> None:
    """The server has sample 0 and one of client 1's: one batch, one step a round, the optimiser anew each time. Nobody
    takes part, and the images are all that travels: two of two bytes, once."""
    task = job("centralized", head="eye", server_rows=(0, 2), lr=0.5, momentum=0.9)
    told = story(task, 3)
    both = Data.of([(1, 0), (0, 1)], [0, 1])
    same(told[0][0].model, sgd(EYE, both, 0.5))
    same(told[2][0].model, sgd(EYE, both, 0.5, steps=3))
    assert all(played.participants == () for _, played in told)
    assert [(s.cost.bytes_up, s.cost.bytes_down) for s, _ in told] == [(4, 0)] * 3
    assert not told[2][0].server.met
    assert told[0][1].loss == pytest.approx(float(torch.log1p(torch.exp(torch.tensor(-1.0)))), abs=1e-6)


def test_the_server_takes_plain_steps_whatever_the_clients_do() -> None:
    """Clients look ahead; after their mean the server, which has sample 0, makes one step of SGD."""
    state = last(job({"name": "per-fedavg", "server_data": "all"}, head="eye", server_rows=(0,)))
    came = mean([look_ahead(EYE, data, data, 1.0, 1.0) for data in (FIRST, SECOND)], [0.25, 0.75])
    same(state.model, sgd(came, FIRST, 1.0))


def test_centralised_can_train_the_body_alone() -> None:
    state = last(job("centralized-body", head="eye", server_rows=(0,), lr=0.5))
    assert torch.equal(head(state), torch.eye(2))
    torch.testing.assert_close(body(state), torch.tensor([1 + 0.5 * SIGMA, 1.0]))


def test_centralised_from_zero_weights() -> None:
    same(last(job("centralized", server_rows=(1,))).model, sgd(ZEROS, SECOND, 1.0))
